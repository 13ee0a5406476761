//! Another revision to compare with: its sources in a work tree under the target directory, built there, which the next one
//! uses again.

use std::path::{Path, PathBuf};

use crate::process::{self, Outcome};

/// A revision of a repository.
#[derive(Debug)]
pub(super) struct Base {
    revision: String,
    commit: String,
    repository: PathBuf,
    /// Its sources.
    tree: PathBuf,
    /// What is built of them.
    target: PathBuf,
}

impl Base {
    /// Finds a revision. Its tree and what is built of it are to lie in `place`.
    pub(super) fn find(repository: &Path, place: &Path, revision: &str) -> Result<Self, String> {
        let commit = format!("{revision}^{{commit}}");
        let commit = git(repository, &["rev-parse", "--verify", "--quiet", "--end-of-options", &commit])
            .map_err(|problem| match problem {
                Problem::Failed(_) => format!("--base {revision}: there is no such revision"),
                Problem::NotStarted(problem) => problem,
            })?;
        Ok(Self {
            revision: revision.to_owned(),
            commit,
            repository: repository.to_path_buf(),
            tree: place.join("tree"),
            target: place.join("target"),
        })
    }

    /// What it is called in the report.
    pub(super) fn name(&self) -> String {
        format!("{} ({})", self.revision, &self.commit[..self.commit.len().min(SHORT)])
    }

    /// Builds it with `build`, which is given the tree and the target directory; where its bench is.
    pub(super) fn build(&self, build: impl FnOnce(&Path, &Path) -> Outcome) -> Result<PathBuf, String> {
        self.check_out().map_err(|problem| format!("--base {}: {problem}", self.name()))?;
        println!("bench: building {} in {}; the first time takes minutes", self.name(), self.tree.display());
        build(&self.tree, &self.target).map_err(|problem| {
            format!("--base {} does not build, so there is nothing to compare with: {problem}", self.name())
        })?;
        Ok(self.target.join("release/weir-bench"))
    }

    fn check_out(&self) -> Outcome {
        if self.is_of_repository() {
            let changes = git(&self.tree, &["status", "--porcelain"])?;
            if !changes.is_empty() {
                return Err(format!(
                    "{} has changes, which would be measured as that revision; remove them or the directory:\n{changes}",
                    self.tree.display()
                ));
            }
            git(&self.tree, &["checkout", "--quiet", "--detach", &self.commit])?;
            return Ok(());
        }
        // Of another clone with the same target directory, of one that is gone, or half made.
        if self.tree.exists() {
            std::fs::remove_dir_all(&self.tree)
                .map_err(|error| format!("cannot remove {}: {error}", self.tree.display()))?;
        }
        // One whose directory was removed is still known to git.
        git(&self.repository, &["worktree", "prune"])?;
        let tree = self.tree.to_str().ok_or("a target directory whose name is no text")?;
        git(&self.repository, &["worktree", "add", "--quiet", "--detach", tree, &self.commit])?;
        Ok(())
    }

    /// Whether the tree is one of this repository.
    fn is_of_repository(&self) -> bool {
        // Without this, the repository around it would be found.
        if !self.tree.join(".git").exists() {
            return false;
        }
        let common = |at: &Path| {
            git(at, &["rev-parse", "--path-format=absolute", "--git-common-dir"])
                .ok()
                .and_then(|directory| Path::new(&directory).canonicalize().ok())
        };
        common(&self.tree).is_some_and(|of_tree| common(&self.repository) == Some(of_tree))
    }
}

/// Whether a work tree has changes that are not committed. No, where there is no git.
pub(super) fn has_changes(tree: &Path) -> bool {
    git(tree, &["status", "--porcelain"]).is_ok_and(|changes| !changes.is_empty())
}

/// Digits of a commit that tell it apart.
const SHORT: usize = 10;

/// Why git did not do what it was to do.
#[derive(Debug)]
enum Problem {
    NotStarted(String),
    /// What it complained of.
    Failed(String),
}

impl From<Problem> for String {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::NotStarted(text) | Problem::Failed(text) => text,
        }
    }
}

/// What git prints, without the end of its last line.
fn git(directory: &Path, arguments: &[&str]) -> Result<String, Problem> {
    let mut command = process::command("git");
    command.current_dir(directory).args(arguments);
    // A hook is told by these where its own repository is.
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(variable);
    }
    let output =
        command.output().map_err(|error| Problem::NotStarted(format!("cannot start git: {error}")))?;
    if !output.status.success() {
        let line = process::describe(&command);
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Problem::Failed(format!("`{line}` failed ({}): {complaint}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with two commits, `first` and `second`, whose only file says which.
    fn repository(directory: &Path) -> PathBuf {
        let repository = directory.join("repository");
        std::fs::create_dir(&repository).expect("a directory");
        git(&repository, &["init", "--quiet"]).expect("a repository");
        for text in ["first", "second"] {
            std::fs::write(repository.join("file"), text).expect("a file");
            git(&repository, &["add", "file"]).expect("it is added");
            let commit =
                ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false", "commit"];
            git(&repository, &[&commit[..], &["--quiet", "--no-verify", "-m", text]].concat())
                .expect("a commit");
            git(&repository, &["tag", text]).expect("a tag");
        }
        repository
    }

    /// What is in the only file of the tree in which a revision is built.
    fn built(repository: &Path, place: &Path, revision: &str) -> Result<String, String> {
        let mut read = String::new();
        let program = Base::find(repository, place, revision)?.build(|tree, target| {
            assert_eq!(target, place.join("target"));
            read = std::fs::read_to_string(tree.join("file")).expect("the file");
            Ok(())
        })?;
        assert_eq!(program, place.join("target/release/weir-bench"));
        Ok(read)
    }

    #[test]
    fn a_revision_is_built_in_a_tree_that_the_next_one_uses() {
        let directory = tempfile::tempdir().expect("a directory");
        let repository = repository(directory.path());
        let place = repository.join("target/base");
        for revision in ["first", "second", "HEAD~1", "first"] {
            let needed = if revision == "second" { "second" } else { "first" };
            assert_eq!(built(&repository, &place, revision).as_deref(), Ok(needed), "{revision}");
        }
        assert_eq!(std::fs::read_to_string(repository.join("file")).expect("the file"), "second");
        assert!(Base::find(&repository, &place, "first").expect("it is there").name().starts_with("first ("));
        // The user removes what was built.
        std::fs::remove_dir_all(&place).expect("it was there");
        assert_eq!(built(&repository, &place, "first").as_deref(), Ok("first"));
    }

    #[test]
    fn a_tree_of_another_clone_or_of_none_is_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("base");
        let places = ["one", "two"].map(|name| directory.path().join(name));
        for at in &places {
            std::fs::create_dir(at).expect("a directory");
        }
        let [one, two] = places.map(|at: PathBuf| repository(&at));
        assert_eq!(built(&one, &place, "first").as_deref(), Ok("first"));
        assert_eq!(built(&two, &place, "second").as_deref(), Ok("second"));
        std::fs::remove_dir_all(&two).expect("it was there");
        assert_eq!(built(&one, &place, "first").as_deref(), Ok("first"));
        std::fs::remove_file(place.join("tree/.git")).expect("it was there");
        assert_eq!(built(&one, &place, "second").as_deref(), Ok("second"));
    }

    #[test]
    fn what_cannot_be_compared_is_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let (repository, place) = (repository(directory.path()), directory.path().join("base"));
        let unknown = Base::find(&repository, &place, "no-such-revision").expect_err("there is none");
        assert_eq!(unknown, "--base no-such-revision: there is no such revision");
        let broken = Base::find(&repository, &place, "first").expect("it is there");
        let problem = broken.build(|_, _| Err("`cargo build` failed".to_owned())).expect_err("it is broken");
        assert!(problem.starts_with("--base first (") && problem.contains("does not build"), "{problem}");
        assert!(problem.ends_with("`cargo build` failed"), "{problem}");
        for changed in ["file", "more"] {
            assert_eq!(built(&repository, &place, "first").as_deref(), Ok("first"));
            std::fs::write(place.join("tree").join(changed), "changed").expect("a file");
            let problem = built(&repository, &place, "second").expect_err("it has changes");
            assert!(problem.contains("has changes") && problem.contains(changed), "{problem}");
            std::fs::remove_dir_all(place.join("tree")).expect("as it was told");
        }
        assert!(!has_changes(&repository));
        std::fs::write(repository.join("file"), "changed").expect("a file");
        assert!(has_changes(&repository));
        assert!(!has_changes(Path::new("/")), "there is no git");
    }
}
