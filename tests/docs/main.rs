//! The documents are held to the code.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// What stands between backticks in the last cell of each table row.
fn named_tests(page: &str) -> Vec<(String, Vec<String>)> {
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| #"));
    rows.map(|row| {
        let cells: Vec<_> = row.trim_end_matches('|').split(" | ").collect();
        let last = cells.last().unwrap();
        let names = last.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        (cells[0].trim_matches(['|', ' ']).to_owned(), names)
    })
    .collect()
}

#[test]
fn every_failure_case_has_a_test_that_exists() {
    let page = fs::read_to_string(root().join("docs/failure-cases.md")).unwrap();
    let mut code = String::new();
    for folder in ["src", "tests", "examples"] {
        sources(&root().join(folder), &mut code);
    }
    let rows = named_tests(&page);
    assert!(rows.len() > 30);
    for (case, tests) in rows {
        assert!(!tests.is_empty(), "case {case} names no test");
        for test in tests {
            let defined = ["(", "<"].iter().any(|next| code.contains(&format!("fn {test}{next}")));
            assert!(defined, "case {case}: there is no test {test}");
        }
    }
}

#[test]
fn every_link_between_the_documents_leads_somewhere() {
    let mut pages = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    pages.extend(fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    for page in pages.iter().filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let text = fs::read_to_string(page).unwrap();
        for link in text.split("](").skip(1) {
            let target = link.split(')').next().unwrap();
            if target.starts_with("http") {
                continue;
            }
            let file = target.split('#').next().unwrap();
            if !file.is_empty() {
                let path = page.parent().unwrap().join(file);
                assert!(path.exists(), "{}: nothing at {target}", page.display());
            }
        }
    }
}
