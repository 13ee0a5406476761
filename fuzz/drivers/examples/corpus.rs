//! What `cargo xtask fuzz` needs of a driver: `corpus seeds TARGET DIRECTORY` writes the generated seeds, and
//! `corpus noticing TARGET FROM TO` copies the shortest inputs that notice the driver's broken rule.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io, panic};

use weir_fuzz_drivers::{Driver, drivers, replay};

/// So many inputs that notice the broken rule are enough.
const NOTICING: usize = 8;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (verb, target, rest) = match words.as_slice() {
        [verb, target, rest @ ..] => (*verb, *target, rest),
        _ => ("", "", &[][..]),
    };
    let Some(driver) = drivers().into_iter().find(|driver| driver.name == target) else {
        eprintln!("there is no target {target:?}");
        return ExitCode::FAILURE;
    };
    let outcome = match (verb, rest) {
        ("seeds", [directory]) => write_seeds(&driver, Path::new(directory)),
        ("noticing", [from, to]) => copy_noticing(&driver, Path::new(from), Path::new(to)),
        _ => Err(io::Error::other("usage: corpus seeds TARGET DIRECTORY | corpus noticing TARGET FROM TO")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("corpus of {target}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write_seeds(driver: &Driver, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for (number, seed) in (driver.seeds)().iter().enumerate() {
        fs::write(directory.join(format!("seed-{number}")), seed)?;
    }
    Ok(())
}

fn copy_noticing(driver: &Driver, from: &Path, to: &Path) -> io::Result<()> {
    let mut inputs: Vec<(Vec<u8>, PathBuf)> = fs::read_dir(from)?
        .map(|entry| entry.and_then(|entry| Ok((fs::read(entry.path())?, entry.path()))))
        .collect::<io::Result<_>>()?;
    inputs.sort_by_key(|(bytes, _)| bytes.len());
    // Each of them panics, which is what is asked.
    panic::set_hook(Box::new(|_| {}));
    let noticing = inputs.iter().filter(|(bytes, _)| replay::notices(driver, bytes)).take(NOTICING);
    for (bytes, path) in noticing {
        fs::write(to.join(path.file_name().unwrap_or_default()), bytes)?;
    }
    Ok(())
}
