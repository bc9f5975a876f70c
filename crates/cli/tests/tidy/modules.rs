//! The tree of modules is the architecture: arrows go one way, and a crate has one style of folders.
//!
//! *Circles.* At every module, its children are looked at as wholes: a child with all that lies beneath it.
//! An arrow goes from child to child if a `use` or a path in the one leads to the other, through re-exports
//! too. These arrows may form no circle. Between a module and its own descendants arrows may go both ways: a
//! parent composes its children, and these share the parent's types. Tests are exempt (`#[cfg(test)]`, files
//! `tests.rs`), and what stands inside macros' arguments is not seen.

use crate::size::parse;
use crate::{assert_none, files, ratchet};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// Path of a module from the root of its crate; the root itself is empty.
type Name = Vec<String>;

/// One module: its names for other things, and the paths it mentions with their lines.
#[derive(Default)]
struct Module {
    file: String,
    children: BTreeSet<String>,
    items: BTreeSet<String>,
    aliases: BTreeMap<String, Name>,
    globs: Vec<Name>,
    paths: Vec<(Name, usize)>,
}

/// The modules of one crate.
#[derive(Default)]
struct Tree {
    modules: BTreeMap<Name, Module>,
}

impl Tree {
    /// Reads a crate from its root file on; `text` gives a file's text by its path.
    fn read<'a>(root: &str, text: &dyn Fn(&str) -> Option<&'a str>) -> Self {
        let mut tree = Self::default();
        let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
        let source = text(root).unwrap_or_else(|| panic!("no file {root}"));
        tree.add(&mut Vec::new(), root, folder, parse(root, source).items, text);
        tree
    }

    fn add<'a>(
        &mut self,
        name: &mut Name,
        file: &str,
        folder: &str,
        items: Vec<syn::Item>,
        text: &dyn Fn(&str) -> Option<&'a str>,
    ) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        for item in &items {
            module.note(item);
        }
        self.modules.insert(name.clone(), module);
        for item in items {
            let syn::Item::Mod(item) = item else { continue };
            let child = item.ident.to_string();
            if is_test(&item.attrs) || child == "tests" {
                continue;
            }
            let inner = format!("{folder}/{child}");
            name.push(child.clone());
            if let Some((_, items)) = item.content {
                self.add(name, file, &inner, items, text);
            } else {
                let candidates = [format!("{inner}.rs"), format!("{inner}/mod.rs")];
                let found = candidates.iter().find_map(|path| Some((path, text(path)?)));
                let (path, source) = found.unwrap_or_else(|| panic!("{file}: no file for module {child}"));
                self.add(name, path, &inner, parse(path, source).items, text);
            }
            name.pop();
        }
    }

    /// The module that a path written in `from` leads to, through aliases and re-exports; none outside of the
    /// crate.
    fn resolve(&self, from: &Name, path: &[String], depth: usize) -> Option<Name> {
        let mut at = from.clone();
        let mut rest = path;
        while let [first, after @ ..] = rest {
            match first.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                _ => break,
            }
            rest = after;
        }
        let relative = rest.len() == path.len();
        while let [first, after @ ..] = rest {
            let module = self.modules.get(&at)?;
            if module.children.contains(first) {
                at.push(first.clone());
                rest = after;
                continue;
            }
            if module.items.contains(first) {
                return Some(at);
            }
            if depth == 0 {
                return None;
            }
            if let Some(target) = module.aliases.get(first) {
                let target: Vec<String> = target.iter().chain(after).cloned().collect();
                return self.resolve(&at, &target, depth - 1);
            }
            let through = |glob: &Name| self.resolve(&at, &[glob.as_slice(), rest].concat(), depth - 1);
            return module.globs.iter().find_map(through).or((!relative).then_some(at));
        }
        Some(at)
    }

    /// For each module the arrows between its children, with an example of each.
    fn arrows(&self) -> BTreeMap<Name, BTreeMap<(String, String), String>> {
        let mut arrows: BTreeMap<Name, BTreeMap<(String, String), String>> = BTreeMap::new();
        for (from, module) in &self.modules {
            for (path, line) in &module.paths {
                let Some(to) = self.resolve(from, path, 8) else { continue };
                let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if let (Some(a), Some(b)) = (from.get(shared), to.get(shared)) {
                    let example = format!("{}:{line}: {a} uses {b}", module.file);
                    let level = arrows.entry(from[..shared].to_vec()).or_default();
                    level.entry((a.clone(), b.clone())).or_insert(example);
                }
            }
        }
        arrows
    }

    /// One offence for each module that stands in a circle, with its arrows within the circle.
    fn circles(&self) -> Vec<String> {
        let mut offences = Vec::new();
        for (parent, arrows) in self.arrows() {
            let reach = reachable(&arrows);
            for (module, reached) in &reach {
                let circle: BTreeSet<&String> = reached
                    .iter()
                    .filter(|other| reach.get(*other).is_some_and(|back| back.contains(module)))
                    .collect();
                if circle.is_empty() {
                    continue;
                }
                let within = arrows.iter().filter(|((a, b), _)| a == module && circle.contains(b));
                let examples: Vec<&str> = within.map(|(_, example)| example.as_str()).collect();
                let place = format!(
                    "crate::{}",
                    [parent.as_slice(), std::slice::from_ref(module)].concat().join("::")
                );
                offences.push(format!("{place} stands in a circle: {}", examples.join("; ")));
            }
        }
        offences
    }
}

/// All that each module reaches by one arrow or more.
fn reachable(arrows: &BTreeMap<(String, String), String>) -> BTreeMap<String, BTreeSet<String>> {
    let mut reach: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (a, b) in arrows.keys() {
        reach.entry(a.clone()).or_default().insert(b.clone());
    }
    loop {
        let mut grown = false;
        for module in reach.keys().cloned().collect::<Vec<_>>() {
            let further: BTreeSet<String> =
                reach[&module].iter().filter_map(|next| reach.get(next)).flatten().cloned().collect();
            let set = reach.get_mut(&module).expect("listed");
            let before = set.len();
            set.extend(further);
            grown |= set.len() > before;
        }
        if !grown {
            return reach;
        }
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::NameValue(_) => false,
    })
}

impl Module {
    fn note(&mut self, item: &syn::Item) {
        let (name, attributes) = match item {
            syn::Item::Mod(item) => {
                if !is_test(&item.attrs) && item.ident != "tests" {
                    self.children.insert(item.ident.to_string());
                }
                return;
            }
            syn::Item::Use(item) => {
                if !is_test(&item.attrs) {
                    self.note_use(&item.tree, &mut Vec::new(), item.use_token.span.start().line);
                }
                return;
            }
            syn::Item::Const(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Enum(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Fn(item) => (Some(&item.sig.ident), &item.attrs),
            syn::Item::Static(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Struct(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Trait(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Type(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Impl(item) => (None, &item.attrs),
            syn::Item::Macro(item) => (item.ident.as_ref(), &item.attrs),
            _ => return,
        };
        if is_test(attributes) {
            return;
        }
        self.items.extend(name.map(ToString::to_string));
        self.visit_item(item);
    }

    fn note_use(&mut self, tree: &syn::UseTree, path: &mut Name, line: usize) {
        match tree {
            syn::UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.note_use(&part.tree, path, line);
                path.pop();
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.note_use(tree, path, line);
                }
            }
            syn::UseTree::Glob(_) => {
                self.globs.push(path.clone());
                self.paths.push((path.clone(), line));
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                self.alias(path.last().cloned(), path.clone(), line);
            }
            syn::UseTree::Name(name) => {
                let name = name.ident.to_string();
                self.alias(Some(name.clone()), [path.as_slice(), &[name]].concat(), line);
            }
            syn::UseTree::Rename(name) => {
                let end = (name.ident != "self").then(|| name.ident.to_string());
                let path = path.iter().cloned().chain(end).collect();
                self.alias(Some(name.rename.to_string()), path, line);
            }
        }
    }

    fn alias(&mut self, name: Option<String>, path: Name, line: usize) {
        self.paths.push((path.clone(), line));
        if let Some(name) = name.filter(|name| path.first() != Some(name)) {
            self.aliases.insert(name, path);
        }
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Name = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let line = path.segments.first().map_or(0, |segment| segment.ident.span().start().line);
        if path.leading_colon.is_none() && names.len() > 1 {
            self.paths.push((names, line));
        }
        visit::visit_path(self, path);
    }
}

/// Root files of all crates' libraries and programs.
fn roots() -> impl Iterator<Item = &'static str> {
    files::rust()
        .map(|file| file.path.as_str())
        .filter(|path| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs"))
}

/// Folders of modules in the style that a crate uses less, if it uses both (`x/mod.rs`, and `x.rs` with
/// `x/`).
fn mixed_styles(paths: &[&str]) -> Vec<String> {
    let mut crates: BTreeMap<&str, [Vec<&str>; 2]> = BTreeMap::new();
    for path in paths {
        let Some((package, _)) = path.split_once("/src/") else { continue };
        let inner = path.strip_suffix(".rs").map(|stem| format!("{stem}/"));
        let has_folder = inner.is_some_and(|inner| paths.iter().any(|other| other.starts_with(&inner)));
        if path.ends_with("/mod.rs") {
            crates.entry(package).or_default()[0].push(path);
        } else if has_folder {
            crates.entry(package).or_default()[1].push(path);
        }
    }
    let fewer = crates.into_values().filter(|[a, b]| !a.is_empty() && !b.is_empty());
    fewer
        .flat_map(|[a, b]| if a.len() <= b.len() { a } else { b })
        .map(|path| format!("{path}: the crate has folders of modules in the other style too"))
        .collect()
}

#[test]
fn no_modules_form_a_circle() {
    let texts: BTreeMap<&str, &str> =
        files::rust().map(|file| (file.path.as_str(), file.text.as_str())).collect();
    let mut offences = Vec::new();
    for root in roots() {
        let circles = Tree::read(root, &|path| texts.get(path).copied()).circles();
        offences.extend(circles.iter().map(|circle| format!("{root}: {circle}")));
    }
    ratchet::hold("circles of modules", &offences);
}

#[test]
fn a_crate_has_one_style_of_modules() {
    let paths: Vec<&str> = files::rust().map(|file| file.path.as_str()).collect();
    ratchet::hold("styles of modules", &mixed_styles(&paths));
}

#[test]
fn notices_circles() {
    let circles = |sources: &[(&str, &str)]| {
        let sources: BTreeMap<&str, &str> = sources.iter().copied().collect();
        Tree::read("src/lib.rs", &|path| sources.get(path).copied()).circles().len()
    };
    let root = ("src/lib.rs", "mod a; mod b; mod c; pub use b::B;");
    let b = ("src/b.rs", "use crate::c::C; pub struct B;");
    let c = ("src/c.rs", "mod inner;\npub struct C;");
    // Directly, through a re-export, by a path in an expression, by a module's name, and from deeper down.
    for (text, inner) in [
        ("use crate::b::B;", ""),
        ("use crate::B;", ""),
        ("fn f() { super::b::g() }", ""),
        ("use crate::b; fn f() { b::g() }", ""),
        ("", "use super::super::b::B;"),
    ] {
        let c = ("src/c.rs", &*format!("mod inner; pub struct C; {text}"));
        assert_eq!(
            circles(&[root, ("src/a.rs", "use crate::b;"), b, c, ("src/c/inner.rs", inner)]),
            2,
            "{text}"
        );
    }
    // A child may use its parent, and tests what they like.
    let child = ("src/c/inner.rs", "use super::C; use crate::c; #[cfg(test)] mod tests { use crate::b::B; }");
    assert_eq!(circles(&[root, ("src/a.rs", "use crate::b::B;"), b, c, child]), 0);
    // Circles of siblings further down count too.
    let deep = [
        ("src/lib.rs", "mod a;"),
        ("src/a.rs", "mod x; mod y;"),
        ("src/a/x.rs", "use super::y;"),
        ("src/a/y.rs", "use crate::a::x;"),
    ];
    assert_eq!(circles(&deep), 2);
}

#[test]
fn notices_mixed_styles() {
    let paths = [
        "crates/a/src/x/mod.rs",
        "crates/a/src/y.rs",
        "crates/a/src/y/z.rs",
        "crates/b/src/x/mod.rs",
        "crates/b/src/y.rs",
    ];
    assert_eq!(mixed_styles(&paths).len(), 1);
    assert_eq!(mixed_styles(&paths[1..]), [""; 0]);
    assert_none(&[]);
}
