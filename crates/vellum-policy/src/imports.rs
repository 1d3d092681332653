//! Finds the modules that a Rust file names by paths.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens as _;

use crate::Source;

/// A path that begins at the crate's root, as far as it names modules or items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The line of the path, from 1.
    pub line: usize,
    /// The names behind `crate`: `["space", "fault", "Access"]`.
    pub path: Vec<String>,
}

/// Returns what `source` names in the crate: by `crate::`, `super::` and `self::` paths, by the
/// names of its own child modules, and by names that a `use` item has brought in. Tests are left
/// out.
///
/// `module` is the path of the file's own module, from the crate's root.
///
/// # Panics
///
/// If the file is not valid Rust.
pub fn imports(source: &Source, module: &[String]) -> Vec<Import> {
    let file = without_tests(source);
    let scope = Scope::new(&file, module);
    let mut found = Vec::new();
    scope.look(file.into_token_stream(), &mut found);
    found
}

/// A name that a module re-exports from elsewhere in the crate: by a `use` of the name, or by a
/// glob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The name in this module, or `None` for a glob.
    pub name: Option<String>,
    /// The path from the crate's root of the item, or for a glob of the module.
    pub path: Vec<String>,
}

/// Returns the names that the `use` items of `source` bring into its module from the crate.
///
/// # Panics
///
/// If the file is not valid Rust.
pub fn exports(source: &Source, module: &[String]) -> Vec<Export> {
    Scope::new(&without_tests(source), module).exports
}

/// Returns the syntax of `source` without items that are compiled for tests alone.
///
/// # Panics
///
/// If the file is not valid Rust.
pub fn without_tests(source: &Source) -> syn::File {
    let mut file = syn::parse_file(&source.text).unwrap_or_else(|error| panic!("{}: {error}", source.path));
    file.items.retain(|item| !attributes(item).iter().any(is_for_tests));
    file
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_for_tests(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.meta.require_list().is_ok_and(|list| {
            let condition = list.tokens.to_string();
            condition == "test" || condition.contains("all (test") || condition.contains("any (test")
        })
}

/// The names of one file that can begin a path, and what they stand for.
struct Scope {
    module: Vec<String>,
    children: Vec<String>,
    exports: Vec<Export>,
}

impl Scope {
    fn new(file: &syn::File, module: &[String]) -> Self {
        let children = file.items.iter().filter_map(|item| match item {
            syn::Item::Mod(child) if child.content.is_none() => Some(child.ident.to_string()),
            _ => None,
        });
        let mut scope = Scope { module: module.to_vec(), children: children.collect(), exports: Vec::new() };
        for item in &file.items {
            if let syn::Item::Use(item) = item {
                scope.bring_in(&item.tree, &mut Vec::new());
            }
        }
        scope
    }

    /// Adds the names of a `use` tree below `before`.
    fn bring_in(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        let (name, path) = match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.bring_in(&path.tree, before);
                before.pop();
                return;
            }
            syn::UseTree::Group(group) => return group.items.iter().for_each(|tree| self.bring_in(tree, before)),
            syn::UseTree::Name(name) if name.ident == "self" => (before.last().cloned(), before.clone()),
            syn::UseTree::Name(name) => (Some(name.ident.to_string()), joined(before, &name.ident)),
            syn::UseTree::Rename(rename) => (Some(rename.rename.to_string()), joined(before, &rename.ident)),
            syn::UseTree::Glob(_) => (None, before.clone()),
        };
        if let Some(path) = self.absolute(&path) {
            self.exports.push(Export { name, path });
        }
    }

    /// Returns the path from the crate's root of the item that `path` names in this file, or `None`
    /// if it is in another crate.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let mut up = 0;
        let mut rest = path;
        loop {
            match rest.first().map(String::as_str)? {
                "crate" => return Some(rest[1..].to_vec()),
                "self" => rest = &rest[1..],
                "super" => (up, rest) = (up + 1, &rest[1..]),
                child if rest.len() == path.len() && !self.children.iter().any(|name| name == child) => return None,
                // Stop at the root: `super` in an inline module (`mod x { use super::… }`) counts
                // one level too many, as this knows only the file's module.
                _ => return Some([&self.module[..self.module.len().saturating_sub(up)], rest].concat()),
            }
        }
    }

    /// Returns the path from the crate's root of `word`, the first name of a path, or `None` if it
    /// names nothing in the crate.
    fn start(&self, word: &str) -> Option<Vec<String>> {
        match word {
            "crate" => Some(Vec::new()),
            "self" => Some(self.module.clone()),
            "super" => Some(self.module[..self.module.len().saturating_sub(1)].to_vec()),
            child if self.children.iter().any(|name| name == child) => Some(joined(&self.module, &child)),
            name => self.exports.iter().find(|export| export.name.as_deref() == Some(name)).map(|e| e.path.clone()),
        }
    }

    fn look(&self, tokens: TokenStream, found: &mut Vec<Import>) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Ident(word) if is_path(&tokens[at + 1..]) && !is_after_path(&tokens[..at]) => {
                    let Some(mut base) = self.start(&word.to_string()) else {
                        at += 1;
                        continue;
                    };
                    let line = word.span().start().line;
                    at += 3;
                    while *word == "super"
                        && matches!(tokens.get(at), Some(TokenTree::Ident(word)) if *word == "super")
                        && is_path(&tokens[at + 1..])
                    {
                        base.pop();
                        at += 3;
                    }
                    at += follow(&tokens[at..], line, base, found);
                }
                TokenTree::Group(group) => {
                    self.look(group.stream(), found);
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }
}

fn joined(path: &[String], name: &impl ToString) -> Vec<String> {
    let mut path = path.to_vec();
    path.push(name.to_string());
    path
}

/// Returns true if `tokens` end with `::`, or with a `.` that selects a member.
fn is_after_path(tokens: &[TokenTree]) -> bool {
    match tokens {
        [.., TokenTree::Punct(a), TokenTree::Punct(b)] if a.as_char() == ':' && b.as_char() == ':' => true,
        [.., TokenTree::Punct(dot)] => dot.as_char() == '.',
        _ => false,
    }
}

/// Returns true if `tokens` begin with `::`.
fn is_path(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [TokenTree::Punct(a), TokenTree::Punct(b), ..] if a.as_char() == ':' && b.as_char() == ':')
}

/// Reads names and groups of names behind `path`. Returns the number of tokens read.
fn follow(tokens: &[TokenTree], line: usize, mut path: Vec<String>, found: &mut Vec<Import>) -> usize {
    let mut at = 0;
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(name)) => {
                path.push(name.to_string());
                at += 1;
                if !is_path(&tokens[at..]) {
                    found.push(Import { line, path });
                    return at;
                }
                at += 2;
            }
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',');
                for part in inside.split(is_comma).filter(|part| !part.is_empty()) {
                    let line = part[0].span().start().line;
                    follow(part, line, path.clone(), found);
                }
                return at + 1;
            }
            // A glob or generic arguments: the path ends here.
            _ => {
                found.push(Import { line, path });
                return at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str, module: &[&str]) -> Vec<String> {
        let module: Vec<String> = module.iter().map(|name| name.to_string()).collect();
        let source = Source { path: "x.rs".into(), text: text.into() };
        imports(&source, &module).into_iter().map(|import| import.path.join("::")).collect()
    }

    #[test]
    fn paths_are_found_in_use_items_groups_bodies_and_macros() {
        let text = "use crate::{a, b::{self, C}};\nfn f() { crate::d::e(); println!(\"{}\", crate::g::H); }";
        assert_eq!(paths(text, &["m"]), ["a", "b::self", "b::C", "d::e", "g::H"]);
    }

    #[test]
    fn relative_paths_are_resolved_from_the_files_module() {
        assert_eq!(paths("use super::x::Y;", &["a", "b"]), ["a::x::Y"]);
        assert_eq!(paths("use super::super::Z;", &["a", "b"]), ["Z"]);
    }

    #[test]
    fn children_and_names_brought_in_are_followed() {
        let text = "mod inner;\nuse crate::mem::{self, space as room};\n\
                    fn f() { inner::g(); mem::now(); room::load(); other::h(); x.mem::<u8>(); }";
        assert_eq!(paths(text, &["m"]), ["mem::self", "mem::space", "m::inner::g", "mem::now", "mem::space::load"]);
    }

    #[test]
    fn exports_are_the_names_of_use_items_within_the_crate() {
        let text = "mod inner;\npub use inner::Thing;\npub use self::inner::*;\nuse core::fmt;\nuse super::a as b;";
        let source = Source { path: "x.rs".into(), text: text.into() };
        let names = exports(&source, &["m".to_owned(), "n".to_owned()]);
        let names: Vec<_> = names.into_iter().map(|e| format!("{:?} {}", e.name, e.path.join("::"))).collect();
        assert_eq!(names, ["Some(\"Thing\") m::n::inner::Thing", "None m::n::inner", "Some(\"b\") m::a"]);
    }

    #[test]
    fn items_for_tests_strings_and_comments_are_left_out() {
        let text =
            "//! crate::a\n/// crate::b\nconst T: &str = \"crate::c\";\n#[cfg(test)]\nmod tests { use crate::d::E; }";
        assert_eq!(paths(text, &["m"]), [] as [&str; 0]);
    }
}
