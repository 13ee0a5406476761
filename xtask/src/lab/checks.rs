//! Checks in turn: one line for each, with its time and what was found.

use std::time::{Duration, Instant};

use super::node::LOOK;
use crate::process::Outcome;
use crate::test::NOT_RUN;

/// What became of the checks so far.
pub(super) struct Checks {
    /// What is checked, as each line begins.
    name: &'static str,
    began: Instant,
    passed: usize,
    not_run: usize,
    /// Machines that were started twice.
    again: usize,
    failed: Vec<String>,
}

impl Checks {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, began: Instant::now(), passed: 0, not_run: 0, again: 0, failed: Vec::new() }
    }

    /// Does one check, which returns in a few words what it found. Returns whether it holds.
    pub(super) fn check(&mut self, what: &str, check: impl FnOnce() -> Result<String, String>) -> bool {
        let began = Instant::now();
        let outcome = check();
        let (took, name) = (began.elapsed().as_secs_f64(), self.name);
        match &outcome {
            Ok(found) if found.is_empty() => println!("{name}: ok: {what} ({took:.1} s)"),
            Ok(found) => println!("{name}: ok: {what}: {found} ({took:.1} s)"),
            Err(problem) => println!("{name}: FAIL: {what}: {problem} ({took:.1} s)"),
        }
        match outcome {
            Ok(_) => self.passed += 1,
            Err(_) => self.failed.push(what.to_owned()),
        }
        self.failed.last().is_none_or(|failed| failed != what)
    }

    /// Counts what cannot be checked here, and says why.
    pub(super) fn leave_out(&mut self, what: &str, why: &str) {
        println!("{}", self.left_out(what, why));
    }

    /// Counts a machine that was started once more, and says why.
    pub(super) fn started_again(&mut self, what: &str, why: &str) {
        self.again += 1;
        println!("{}: started once more: {what} ({why})", self.name);
    }

    /// Counts it. The line that says so.
    fn left_out(&mut self, what: &str, why: &str) -> String {
        self.not_run += 1;
        format!("{}: {NOT_RUN} {what} ({why})", self.name)
    }

    /// The last line; an error if something does not hold.
    pub(super) fn finish(self) -> Outcome {
        let (name, passed, not_run, seconds) =
            (self.name, self.passed, self.not_run, self.began.elapsed().as_secs());
        let again = match self.again {
            0 => String::new(),
            again => format!(", {again} machines were started once more"),
        };
        println!(
            "{name}: {passed} hold, {} do not, {not_run} could not run here{again}; {seconds} s",
            self.failed.len()
        );
        if self.failed.is_empty() { Ok(()) } else { Err(format!("{name}: {}", self.failed.join("; "))) }
    }
}

/// Looks again and again until something is found, for at most this long.
///
/// # Errors
/// It was not found; with what the last look said.
pub(super) fn eventually<T>(
    limit: Duration,
    mut look: impl FnMut() -> Result<T, String>,
) -> Result<T, String> {
    let deadline = Instant::now() + limit;
    loop {
        match look() {
            Ok(found) => return Ok(found),
            Err(problem) if Instant::now() >= deadline => {
                return Err(format!("not within {} s: {problem}", limit.as_secs()));
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// Two things that must be the same.
///
/// # Errors
/// They are not; with both.
pub(super) fn same(what: &str, found: &str, wanted: &str) -> Outcome {
    if found == wanted { Ok(()) } else { Err(format!("{what} is {found:?}, not {wanted:?}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_check_that_fails_fails_all_and_the_rest_is_done() {
        let mut checks = Checks::new("lab");
        assert!(checks.check("one", || Ok(String::new())));
        // Not printed: it would be counted among the tests.
        assert_eq!(checks.left_out("two", "no such thing"), format!("lab: {NOT_RUN} two (no such thing)"));
        assert!(!checks.check("three", || same("it", "a", "b").map(|()| String::new())));
        assert!(checks.check("four", || Ok("found".to_owned())));
        assert_eq!((checks.passed, checks.not_run), (2, 1));
        assert_eq!(checks.finish(), Err("lab: three".to_owned()));
    }

    #[test]
    fn what_comes_is_found_and_what_does_not_is_told_with_the_last_look() {
        let mut looks = 0;
        let found = eventually(Duration::from_secs(60), || {
            looks += 1;
            if looks == 3 { Ok(looks) } else { Err("not yet".to_owned()) }
        });
        assert_eq!(found, Ok(3));
        let missing: Result<(), String> = eventually(Duration::ZERO, || Err("never".to_owned()));
        assert_eq!(missing, Err("not within 0 s: never".to_owned()));
    }
}
