//! The libraries that are part of the program, with the texts of their licences, which go where it goes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::said;
use crate::process;

/// The workspaces that the program is built from, and the package in each that it begins with.
const ROOTS: &[(&str, &str)] = &[("Cargo.toml", "weir"), ("ebpf/Cargo.toml", "weir-ebpf")];

/// Beginnings of the names of files that hold a licence or what it wants to be passed on.
const LICENCES: &[&str] = &["licen", "copying", "copyright", "notice", "unlicense"];

/// A library that is part of the program.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Library {
    name: String,
    version: String,
    licence: String,
    manifest: String,
}

/// The page about all of them.
///
/// # Errors
/// cargo does not tell.
pub(super) fn text() -> Result<String, String> {
    let mut libraries = BTreeSet::new();
    for (manifest, root) in ROOTS {
        let told = said(process::command(process::cargo_program()).args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--filter-platform=x86_64-unknown-linux-gnu",
            "--manifest-path",
            manifest,
        ]))?;
        let metadata = serde_json::from_str(&told).map_err(|error| format!("cargo metadata: {error}"))?;
        libraries.extend(linked(&metadata, root)?);
    }
    let mut page =
        "Libraries that are part of weir, with their licences. The texts are below.\n\n".to_owned();
    // The same text is there once, however many have it.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for library in &libraries {
        let name = format!("{} {}", library.name, library.version);
        let _ = writeln!(page, "{name}: {}", library.licence);
        for text in licences(Path::new(&library.manifest)) {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    for (text, names) in texts {
        let _ = write!(page, "\n{}\n{}\n\n{text}\n", "-".repeat(79), names.join(", "));
    }
    Ok(page)
}

/// Everything from elsewhere that is linked with a package.
fn linked(metadata: &Value, root: &str) -> Result<Vec<Library>, String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = list(&metadata["packages"]);
    let of = |id: &str| packages.iter().find(|package| package["id"].as_str() == Some(id));
    let nodes: BTreeMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).into_iter().map(|node| (string(&node["id"]), node)).collect();
    let begin =
        packages.iter().find(|package| package["name"].as_str() == Some(root) && package["source"].is_null());
    let mut waiting = vec![string(&begin.ok_or_else(|| format!("there is no package {root}"))?["id"])];
    let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
    while let Some(id) = waiting.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let Some(package) = of(&id) else { continue };
        // What is run by the compiler is no part of the program.
        let is_macro =
            list(&package["targets"]).iter().any(|one| list(&one["kind"]).contains(&"proc-macro".into()));
        if is_macro {
            continue;
        }
        if !package["source"].is_null() {
            found.push(Library {
                name: string(&package["name"]),
                version: string(&package["version"]),
                licence: package["license"].as_str().unwrap_or("see its text").to_owned(),
                manifest: string(&package["manifest_path"]),
            });
        }
        for dependency in list(&nodes.get(&id).map_or(Value::Null, |node| node["deps"].clone())) {
            // Those of tests and of building have a kind.
            if list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()) {
                waiting.push(string(&dependency["pkg"]));
            }
        }
    }
    Ok(found)
}

/// The texts beside a manifest.
fn licences(manifest: &Path) -> Vec<String> {
    let entries = manifest.parent().and_then(|directory| fs::read_dir(directory).ok());
    let mut paths: Vec<_> = entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let is_one = |name: &str| LICENCES.iter().any(|begin| name.starts_with(begin));
    let named = paths.into_iter().filter(|path| {
        path.file_name().is_some_and(|name| is_one(&name.to_string_lossy().to_ascii_lowercase()))
    });
    let texts = named.filter_map(|path| fs::read_to_string(path).ok());
    texts.map(|text| text.replace("\r\n", "\n").trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_what_is_not_ours_nor_only_built_or_tested_with() {
        let package = |id: &str, source: Value, kind: &str| {
            serde_json::json!({"id": id, "name": id, "version": "1", "license": "MIT", "source": source,
                "manifest_path": "/m", "targets": [{"kind": [kind]}]})
        };
        let dependency =
            |id: &str, kind: Value| serde_json::json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        let metadata = serde_json::json!({
            "packages": [
                package("weir", Value::Null, "lib"), package("ours", Value::Null, "lib"), package("a", "r".into(), "lib"),
                package("derive", "r".into(), "proc-macro"), package("test", "r".into(), "lib"),
            ],
            "resolve": {"nodes": [
                {"id": "weir", "deps": [dependency("ours", Value::Null), dependency("test", "dev".into())]},
                {"id": "ours", "deps": [dependency("a", Value::Null), dependency("derive", Value::Null)]},
            ]},
        });
        let names: Vec<String> =
            linked(&metadata, "weir").unwrap().into_iter().map(|found| found.name).collect();
        assert_eq!(names, ["a"]);
        assert!(linked(&metadata, "other").is_err());
    }
}
