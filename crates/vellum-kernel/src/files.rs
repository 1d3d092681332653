//! The first files: what the archive that the loader brought holds.

use spin::Once;

static ARCHIVE: Once<&'static [u8]> = Once::new();

/// The archive from now on.
pub fn init(archive: &'static [u8]) {
    ARCHIVE.call_once(|| archive);
}

/// A file's contents.
pub fn find(path: &[u8]) -> Option<&'static [u8]> {
    let archive = ARCHIVE.get()?;
    let clean = |name: &str| -> usize { name.len() - name.trim_start_matches("./").trim_start_matches('/').len() };
    let path = core::str::from_utf8(path).ok()?;
    let path = &path[clean(path)..];
    cpio_reader::iter_files(archive).find(|file| &file.name()[clean(file.name())..] == path).map(|file| file.file())
}
