//! Finds the release of a Linux image, as `uname -r` prints it.

use memchr::memmem;

/// Text before the release in each uncompressed Linux image.
pub const BANNER: &[u8] = b"Linux version ";

/// Returns the release of a Linux image; `None` if the image does not have it in the clear.
pub fn of_linux(image: &[u8]) -> Option<String> {
    of_packed(image).or_else(|| {
        // The banner is there more than once: once with `%s` instead of a release.
        memmem::find_iter(image, BANNER).find_map(|at| first_word(&image[at + BANNER.len()..]))
    })
}

/// Returns the release from the header of a compressed x86-64 image (Linux,
/// `Documentation/arch/x86/boot.rst`, `kernel_version`).
fn of_packed(image: &[u8]) -> Option<String> {
    if image.get(0x202..0x206) != Some(b"HdrS") {
        return None;
    }
    let offset = u16::from_le_bytes([*image.get(0x20e)?, *image.get(0x20f)?]);
    first_word(image.get(0x200 + usize::from(offset)..)?)
}

/// Returns the bytes up to a space, if they begin with a digit.
fn first_word(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| !byte.is_ascii_graphic())?;
    let word = std::str::from_utf8(&bytes[..end]).ok()?;
    word.starts_with(|first: char| first.is_ascii_digit()).then(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_in_the_header_of_a_compressed_image() {
        let mut image = vec![0; 0x600];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x250_u16.to_le_bytes());
        image[0x450..0x460].copy_from_slice(b"7.3.4+deb13 (me)");
        assert_eq!(of_linux(&image).as_deref(), Some("7.3.4+deb13"));
        image[0x20e..0x210].copy_from_slice(&0xfff0_u16.to_le_bytes());
        assert_eq!(of_linux(&image), None);
    }

    #[test]
    fn the_release_is_in_the_banner_of_an_uncompressed_image() {
        let image = b"\0Linux version %s (%s)\0Linux version 7.3.4-cloud (me) #1\0";
        assert_eq!(of_linux(image).as_deref(), Some("7.3.4-cloud"));
        assert_eq!(of_linux(b"no kernel"), None);
    }
}
