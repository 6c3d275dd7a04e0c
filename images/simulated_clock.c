/*
 * Preloaded into Slurm's daemons by `harness simulate`: their clock is one that all processes of a
 * simulation share, and that runs at a rate which can change at any time.
 *
 * The clock is a page of a file, SIMULATED_CLOCK, which harness/simulation/host_side.py writes:
 * simulated time = start + (CLOCK_MONOTONIC - began) * rate. All times are in nanoseconds. From
 * `expires` on, the rate is 1: if the program that changes the rate gets no CPU, the clock does not
 * run far in the meantime.
 *
 * A call that waits until a simulated time first waits as long as it would take at the highest
 * rate, `top`, and then looks again. So nothing waits too long when the rate rises, and at the
 * highest rate nothing wakes up early. Timers and alarms cannot look again: they expire as at the
 * highest rate, too early if the rate is lower; Slurm's users of timer_create() (conmgr) check the
 * time and set the timer again.
 *
 * While a wait for a condition looks again, a signal would be lost, because nobody waits for it in
 * that moment. So signals are counted, and the wait ends if there was one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
/* Real time below which a wait is not repeated more often. */
#define SHORTEST 1000000LL
/* Beyond this, a time in seconds means "never". */
#define NEVER (INT64_MAX / SECOND / 4)

struct page {
    _Atomic uint32_t sequence; /* odd while the page is being written */
    uint32_t unused;
    double rate, top;
    int64_t began, expires, realtime, monotonic;
};

static struct page *page;

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_clock_nanosleep)(clockid_t, int, const struct timespec *, struct timespec *);
static int (*real_ppoll)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);
static int (*real_pselect)(int, fd_set *, fd_set *, fd_set *, const struct timespec *,
               const sigset_t *);
static int (*real_epoll_pwait)(int, struct epoll_event *, int, int, const sigset_t *);
static int (*real_cond_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_cond_clockwait)(pthread_cond_t *, pthread_mutex_t *, clockid_t,
                  const struct timespec *);
static int (*real_cond_signal)(pthread_cond_t *);
static int (*real_cond_broadcast)(pthread_cond_t *);
static int (*real_timer_create)(clockid_t, struct sigevent *, timer_t *);
static int (*real_timer_settime)(timer_t, int, const struct itimerspec *, struct itimerspec *);

/* Some architectures also have an older version of these, which dlsym() would find. */
static void *condition_function(const char *name)
{
    void *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
    return found ? found : dlsym(RTLD_NEXT, name);
}

__attribute__((constructor)) static void start(void)
{
    if (real_clock_gettime)
        return;
    real_clock_nanosleep = dlsym(RTLD_NEXT, "clock_nanosleep");
    real_ppoll = dlsym(RTLD_NEXT, "ppoll");
    real_pselect = dlsym(RTLD_NEXT, "pselect");
    real_epoll_pwait = dlsym(RTLD_NEXT, "epoll_pwait");
    real_timer_create = dlsym(RTLD_NEXT, "timer_create");
    real_timer_settime = dlsym(RTLD_NEXT, "timer_settime");
    real_cond_clockwait = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    real_cond_timedwait = condition_function("pthread_cond_timedwait");
    real_cond_signal = condition_function("pthread_cond_signal");
    real_cond_broadcast = condition_function("pthread_cond_broadcast");
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");

    const char *path = getenv("SIMULATED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(*page), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        page = mapped;
}

static int64_t nanoseconds(const struct timespec *time)
{
    return time->tv_sec > NEVER ? NEVER * SECOND : time->tv_sec * SECOND + time->tv_nsec;
}

static struct timespec timespec_of(int64_t time)
{
    if (time < 0)
        time = 0;
    return (struct timespec){time / SECOND, time % SECOND};
}

static int64_t real_now(void)
{
    struct timespec now;
    real_clock_gettime(CLOCK_MONOTONIC, &now);
    return nanoseconds(&now);
}

static int is_monotonic(clockid_t clock)
{
    return clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW ||
           clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_BOOTTIME;
}

static int is_simulated(clockid_t clock)
{
    return page && (is_monotonic(clock) || clock == CLOCK_REALTIME ||
            clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI);
}

/* The simulated time, and the highest rate. */
static int64_t now(int monotonic, double *top)
{
    for (;;) {
        uint32_t sequence = atomic_load_explicit(&page->sequence, memory_order_acquire);
        if (!(sequence & 1)) {
            double rate = page->rate;
            int64_t passed = real_now() - page->began;
            int64_t valid = page->expires - page->began;
            int64_t fast = passed < valid ? passed : valid;
            int64_t base = monotonic ? page->monotonic : page->realtime;
            if (top)
                *top = page->top;
            int64_t time = base + (int64_t)((double)fast * rate) + passed - fast;
            atomic_thread_fence(memory_order_acquire);
            if (atomic_load_explicit(&page->sequence, memory_order_relaxed) == sequence)
                return time;
        }
        struct timespec moment = {0, 20000};
        real_clock_nanosleep(CLOCK_MONOTONIC, 0, &moment, NULL);
    }
}

/* How long to wait now for a simulated time: 0 if it has come. */
static int64_t real_wait(int64_t deadline, int monotonic)
{
    double top;
    int64_t left = deadline - now(monotonic, &top);
    if (left <= 0)
        return 0;
    int64_t wait = (int64_t)((double)left / top) + 1;
    return wait < SHORTEST && top > page->rate ? SHORTEST : wait;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    start();
    if (!is_simulated(clock))
        return real_clock_gettime(clock, time);
    *time = timespec_of(now(is_monotonic(clock), NULL));
    return 0;
}

time_t time(time_t *result)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *time, void *zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *time = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

int timespec_get(struct timespec *time, int base)
{
    clock_gettime(CLOCK_REALTIME, time);
    return base;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
{
    start();
    if (!is_simulated(clock))
        return real_clock_nanosleep(clock, flags, time, left);
    int absolute = flags & TIMER_ABSTIME;
    int monotonic = absolute ? is_monotonic(clock) : 1;
    int64_t deadline = nanoseconds(time) + (absolute ? 0 : now(1, NULL));
    int64_t wait;
    while ((wait = real_wait(deadline, monotonic))) {
        struct timespec moment = timespec_of(wait);
        int error = real_clock_nanosleep(CLOCK_MONOTONIC, 0, &moment, NULL);
        if (error) {
            if (left && !absolute)
                *left = timespec_of(deadline - now(1, NULL));
            return error;
        }
    }
    return 0;
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
    int error = clock_nanosleep(CLOCK_MONOTONIC, 0, time, left);
    if (error)
        errno = error;
    return error ? -1 : 0;
}

int usleep(useconds_t microseconds)
{
    struct timespec time = timespec_of(microseconds * 1000LL);
    return nanosleep(&time, NULL);
}

unsigned int sleep(unsigned int seconds)
{
    struct timespec time = {seconds, 0}, left = {0, 0};
    return nanosleep(&time, &left) ? left.tv_sec : 0;
}

int ppoll(struct pollfd *files, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    start();
    if (!page || !timeout || !nanoseconds(timeout))
        return real_ppoll(files, count, timeout, mask);
    int64_t deadline = now(1, NULL) + nanoseconds(timeout);
    for (;;) {
        int64_t wait = real_wait(deadline, 1);
        struct timespec moment = timespec_of(wait);
        int result = real_ppoll(files, count, &moment, mask);
        if (result || !wait)
            return result;
    }
}

int poll(struct pollfd *files, nfds_t count, int milliseconds)
{
    struct timespec timeout = timespec_of(milliseconds * 1000000LL);
    return ppoll(files, count, milliseconds < 0 ? NULL : &timeout, NULL);
}

int __poll_chk(struct pollfd *files, nfds_t count, int milliseconds, size_t size)
{
    (void)size;
    return poll(files, count, milliseconds);
}

int pselect(int count, fd_set *reads, fd_set *writes, fd_set *others,
        const struct timespec *timeout, const sigset_t *mask)
{
    start();
    if (!page || !timeout || !nanoseconds(timeout))
        return real_pselect(count, reads, writes, others, timeout, mask);
    int64_t deadline = now(1, NULL) + nanoseconds(timeout);
    fd_set *sets[] = {reads, writes, others}, saved[3];
    for (int i = 0; i < 3; i++)
        if (sets[i])
            saved[i] = *sets[i];
    for (;;) {
        int64_t wait = real_wait(deadline, 1);
        struct timespec moment = timespec_of(wait);
        int result = real_pselect(count, reads, writes, others, &moment, mask);
        if (result || !wait)
            return result;
        for (int i = 0; i < 3; i++)
            if (sets[i])
                *sets[i] = saved[i];
    }
}

int select(int count, fd_set *reads, fd_set *writes, fd_set *others, struct timeval *timeout)
{
    struct timespec moment;
    if (timeout)
        moment = (struct timespec){timeout->tv_sec, timeout->tv_usec * 1000};
    return pselect(count, reads, writes, others, timeout ? &moment : NULL, NULL);
}

int epoll_pwait(int file, struct epoll_event *events, int most, int milliseconds,
        const sigset_t *mask)
{
    start();
    if (!page || milliseconds <= 0)
        return real_epoll_pwait(file, events, most, milliseconds, mask);
    /* Its own timeout is in milliseconds, too long for a fast clock. */
    struct pollfd ready = {.fd = file, .events = POLLIN};
    struct timespec timeout = timespec_of(milliseconds * 1000000LL);
    int result = ppoll(&ready, 1, &timeout, mask);
    return result > 0 ? real_epoll_pwait(file, events, most, 0, mask) : result;
}

int epoll_wait(int file, struct epoll_event *events, int most, int milliseconds)
{
    return epoll_pwait(file, events, most, milliseconds, NULL);
}

/* The number of signals of a condition; very rarely, another condition shares it. */
static _Atomic uint32_t *signals_of(const pthread_cond_t *condition)
{
    static _Atomic uint32_t signals[1 << 16];
    return &signals[(uint64_t)(uintptr_t)condition * 0x9e3779b97f4a7c15 >> 48];
}

int pthread_cond_signal(pthread_cond_t *condition)
{
    start();
    atomic_fetch_add(signals_of(condition), 1);
    return real_cond_signal(condition);
}

int pthread_cond_broadcast(pthread_cond_t *condition)
{
    start();
    atomic_fetch_add(signals_of(condition), 1);
    return real_cond_broadcast(condition);
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
               const struct timespec *deadline)
{
    start();
    if (!is_simulated(clock))
        return real_cond_clockwait(condition, mutex, clock, deadline);
    uint32_t before = atomic_load(signals_of(condition));
    for (;;) {
        int64_t wait = real_wait(nanoseconds(deadline), is_monotonic(clock));
        struct timespec moment = timespec_of(real_now() + wait);
        int error = real_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &moment);
        if (error == ETIMEDOUT && atomic_load(signals_of(condition)) != before)
            return 0;
        if (error != ETIMEDOUT || !wait)
            return error;
    }
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
               const struct timespec *deadline)
{
    start();
    if (!page)
        return real_cond_timedwait(condition, mutex, deadline);
    /* The clock of a condition cannot be asked for; seconds since 1970 are larger. */
    clockid_t clock = deadline->tv_sec > 1000000000 ? CLOCK_REALTIME : CLOCK_MONOTONIC;
    return pthread_cond_clockwait(condition, mutex, clock, deadline);
}

int timer_create(clockid_t clock, struct sigevent *event, timer_t *timer)
{
    start();
    return real_timer_create(is_simulated(clock) ? CLOCK_MONOTONIC : clock, event, timer);
}

int timer_settime(timer_t timer, int flags, const struct itimerspec *value, struct itimerspec *old)
{
    start();
    if (!page || !nanoseconds(&value->it_value))
        return real_timer_settime(timer, flags, value, old);
    double top;
    int64_t first = nanoseconds(&value->it_value);
    int monotonic = value->it_value.tv_sec < 1000000000;
    int64_t at = now(monotonic, &top);
    if (flags & TIMER_ABSTIME)
        first -= at;
    first = (int64_t)((double)first / top);
    struct itimerspec real = {
        .it_value = timespec_of(first > 0 ? first : 1),
        .it_interval = timespec_of((int64_t)((double)nanoseconds(&value->it_interval) / top)),
    };
    return real_timer_settime(timer, 0, &real, old);
}

unsigned int alarm(unsigned int seconds)
{
    double top = 1;
    start();
    if (page)
        now(1, &top);
    int64_t wait = (int64_t)(seconds * SECOND / top);
    struct itimerval value = {{0, 0}, {wait / SECOND, wait % SECOND / 1000}}, old;
    if (seconds && !value.it_value.tv_sec && !value.it_value.tv_usec)
        value.it_value.tv_usec = 1;
    setitimer(ITIMER_REAL, &value, &old);
    return (unsigned int)((double)old.it_value.tv_sec * top);
}
