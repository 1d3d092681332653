//! Dependencies have licences that `deny.toml` allows.

use std::process::Command;

use serde_json::Value;
use spdx::{Expression, ParseMode};
use vellum_policy::Tree;

use crate::none;

#[test]
fn dependencies_have_allowed_licences() {
    let root = Tree::of_this_project().root;
    let allowed = allowed(&std::fs::read_to_string(root.join("deny.toml")).expect("deny.toml"));
    let mut metadata = Command::new(env!("CARGO"));
    metadata.args(["metadata", "--format-version", "1", "--locked"]).current_dir(&root);
    let output = metadata.output().expect("cargo metadata");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON of cargo metadata");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    assert!(packages.len() > 50, "cargo metadata lists {} packages", packages.len());
    let refused = packages.iter().filter(|package| !package["source"].is_null()).filter_map(|package| {
        let licence = package["license"].as_str().unwrap_or_default();
        let name = format!("{} {}", package["name"], package["version"]);
        match Expression::parse_mode(licence, ParseMode::LAX) {
            Ok(expression) if expression.evaluate(|one| allowed.contains(&one.to_string())) => None,
            Ok(_) => Some(format!("{name}: {licence}")),
            Err(error) => Some(format!("{name}: '{licence}' is no SPDX expression: {error}")),
        }
    });
    none("dependency whose licence deny.toml does not allow", refused.collect());
}

/// Returns the licences in the `allow` list of `[licenses]`.
fn allowed(text: &str) -> Vec<String> {
    let table: toml::Table = text.parse().expect("deny.toml is TOML");
    let list = table["licenses"]["allow"].as_array().expect("licenses.allow is a list");
    list.iter().map(|name| name.as_str().expect("a name").to_owned()).collect()
}
