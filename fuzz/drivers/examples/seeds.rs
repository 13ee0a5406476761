//! Writes the generated seeds of a driver into a directory: `seeds TARGET DIRECTORY`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs, io};

use weir_fuzz_drivers::drivers;

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let (Some(target), Some(directory)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: seeds TARGET DIRECTORY");
        return ExitCode::FAILURE;
    };
    let Some(driver) = drivers().into_iter().find(|driver| driver.name == target) else {
        eprintln!("there is no target {target}");
        return ExitCode::FAILURE;
    };
    let write = || -> io::Result<()> {
        let directory = PathBuf::from(directory);
        fs::create_dir_all(&directory)?;
        for (number, seed) in (driver.seeds)().iter().enumerate() {
            fs::write(directory.join(format!("seed-{number}")), seed)?;
        }
        Ok(())
    };
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write the seeds of {target}: {error}");
            ExitCode::FAILURE
        }
    }
}
