CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS 'slurm'@'localhost';
ALTER USER 'slurm'@'localhost' IDENTIFIED BY '%secret:database_password%';
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'localhost';
