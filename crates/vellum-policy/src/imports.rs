//! The modules that a Rust file names by paths.

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

/// Returns what `source` names by `crate::…` and `super::…` paths, in `use` items and elsewhere,
/// tests left out.
///
/// `module` is the path of the file's own module, from the crate's root.
///
/// # Panics
///
/// If the file is not valid Rust.
pub fn imports(source: &Source, module: &[String]) -> Vec<Import> {
    let mut found = Vec::new();
    look(without_tests(source).into_token_stream(), module, &mut found);
    found
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

fn look(tokens: TokenStream, module: &[String], found: &mut Vec<Import>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(word) if *word == "crate" && is_path(&tokens[at + 1..]) => {
                let line = word.span().start().line;
                at += 3;
                at += follow(&tokens[at..], line, Vec::new(), found);
            }
            TokenTree::Ident(word) if *word == "super" && is_path(&tokens[at + 1..]) => {
                let line = word.span().start().line;
                let mut up = 1;
                at += 3;
                while matches!(tokens.get(at), Some(TokenTree::Ident(word)) if *word == "super")
                    && is_path(&tokens[at + 1..])
                {
                    up += 1;
                    at += 3;
                }
                // An inline module (`mod x { use super::… }`) is deeper than its file's module.
                let base = module[..module.len().saturating_sub(up)].to_vec();
                at += follow(&tokens[at..], line, base, found);
            }
            TokenTree::Group(group) => {
                look(group.stream(), module, found);
                at += 1;
            }
            _ => at += 1,
        }
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
            // A glob, or the end of a path with generic arguments.
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
    fn items_for_tests_strings_and_comments_are_left_out() {
        let text =
            "//! crate::a\n/// crate::b\nconst T: &str = \"crate::c\";\n#[cfg(test)]\nmod tests { use crate::d::E; }";
        assert_eq!(paths(text, &["m"]), [] as [&str; 0]);
    }
}
