//! Resolves the addresses of a kernel's backtrace to function names.

use addr2line::{Loader, demangle_auto};
use std::borrow::Cow;
use std::fmt::Write;
use std::path::Path;

/// Returns the console's text with each line `  at ADDRESS` replaced by the functions at the
/// address, innermost first, as far as the kernel's image has symbols.
pub fn named(kernel: &Path, console: &str) -> String {
    let Some(names) = Names::of(kernel) else { return console.into() };
    let mut text = String::with_capacity(console.len());
    for line in console.lines() {
        let address = line.strip_prefix("  at 0x").and_then(|rest| u64::from_str_radix(rest.trim_end(), 16).ok());
        if !address.is_some_and(|address| write_frames(&mut text, &names, address)) {
            text += line;
            text.push('\n');
        }
    }
    text
}

/// Writes a line for each function at the address, inlined ones first. Returns whether there is
/// any.
fn write_frames(text: &mut String, names: &Names, address: u64) -> bool {
    let calls = names.at(address);
    for (i, Call { function, file, line }) in calls.iter().enumerate() {
        let place = file.as_ref().map_or_else(String::new, |file| format!(" ({file}:{line})"));
        let lead = if i > 0 { " ".repeat(20) } else { format!("  {address:#018x}") };
        // Writing to a string can't fail.
        let _ = writeln!(text, "{lead}  {function}{place}");
    }
    !calls.is_empty()
}

/// A function at an address.
pub struct Call {
    /// The function's name.
    pub function: String,
    /// The source file, if the image has it.
    pub file: Option<String>,
    /// The line number.
    pub line: u32,
}

/// The symbols of an image.
pub struct Names(Loader);

impl Names {
    /// Reads the symbols of an image. Returns `None` if the file has none.
    pub fn of(image: &Path) -> Option<Self> {
        Loader::new(image).ok().map(Names)
    }

    /// Returns the functions at an address, inlined ones first.
    pub fn at(&self, address: u64) -> Vec<Call> {
        let mut calls = Vec::new();
        let Ok(mut frames) = self.0.find_frames(address) else { return calls };
        while let Ok(Some(frame)) = frames.next() {
            let named = frame.function.as_ref().and_then(|name| name.demangle().ok());
            let Some(name) = named.or_else(|| self.symbol(address)) else { continue };
            let place = frame.location.and_then(|place| Some((place.file?.to_owned(), place.line?)));
            let (file, line) = place.map_or((None, 0), |(file, line)| (Some(file), line));
            calls.push(Call { function: name.into_owned(), file, line });
        }
        // If an image has line tables and no other debug information, it names only functions with
        // others inlined into them, and without their paths; the symbol table has the whole name
        // of the one that they are inlined into.
        if let (Some(outer), Some(name)) = (calls.last_mut(), self.symbol(address)) {
            outer.function = name.into_owned();
        }
        calls
    }

    fn symbol(&self, address: u64) -> Option<Cow<'_, str>> {
        self.0.find_symbol(address).map(|symbol| demangle_auto(symbol.into(), None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn find_me() -> u64 {
        std::hint::black_box(7)
    }

    #[test]
    fn an_address_gets_its_name_and_other_lines_stay() {
        let image = std::env::current_exe().unwrap();
        let loader = Loader::new(&image).unwrap();
        // The file offset of this image's function: the loader may have put the image
        // elsewhere.
        let base = loader.relative_address_base();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let name = image.to_str().unwrap();
        let start = maps.lines().find(|line| line.ends_with(name)).and_then(|line| line.split('-').next()).unwrap();
        let start = u64::from_str_radix(start, 16).unwrap();
        let address = find_me as fn() -> u64 as usize as u64 - start + base;
        let console = format!("first\n  at {address:#018x}\n  at 0xfff0000000000001\nlast\n");
        let text = named(&image, &console);
        assert!(text.contains("find_me") && text.contains("symbols.rs:"), "{text}");
        assert!(text.starts_with("first\n") && text.ends_with("  at 0xfff0000000000001\nlast\n"), "{text}");
    }

    #[test]
    fn without_an_image_the_text_stays() {
        assert_eq!(named(Path::new("/no/such/image"), "  at 0x01\n"), "  at 0x01\n");
    }
}
