//! Tests the page of `vellum inspect --html` in a browser: light and dark, on a wide and a narrow
//! window, on paper.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::process::Command;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use serde_json::Value;

/// Appended to the page: reports what only a script can measure, at the end of the document.
const LOOK: &str = "<script>addEventListener('load', () => {
  const seen = document.createElement('pre'), page = document.documentElement;
  const seenOf = {
    title: document.title,
    dark: matchMedia('(prefers-color-scheme: dark)').matches,
    wide: page.scrollWidth - page.clientWidth, width: innerWidth,
    requests: performance.getEntriesByType('resource').map(one => one.name),
    dead: [...document.querySelectorAll('a')].filter(a => !document.querySelector(a.getAttribute('href'))).length,
    cells: document.querySelectorAll('svg rect').length, rows: document.querySelectorAll('tbody tr').length,
    flat: [...document.querySelectorAll('svg')].filter(svg => svg.getBoundingClientRect().height < 2).length,
  };
  seen.id = 'seen'; seen.textContent = JSON.stringify(seenOf); document.body.append(seen);
});</script>";

/// Opens a page in a browser with a fresh profile. Returns its standard output.
fn browser(folder: &Path, page: &str, words: &[&str]) -> String {
    let profile = tempfile::tempdir().unwrap();
    // (Without a sandbox, as it runs as root in many a container, and the page is ours.)
    let output = Command::new("timeout")
        .args(["120", "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
        .args(["--no-first-run", "--disable-background-networking", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(words)
        .arg(format!("file://{}", folder.join(page).display()))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "chromium (is it there?): {errors}");
    let messages: Vec<&str> = errors.lines().filter(|line| line.contains(":CONSOLE")).collect();
    assert!(messages.is_empty(), "{messages:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns what the script measured at this width.
fn seen(folder: &Path, page: &str, width: u32, words: &[&str]) -> Value {
    let size = format!("--window-size={width},1200");
    let document = browser(folder, page, &[&[&*size, "--dump-dom"], words].concat());
    let (_, rest) =
        document.split_once("<pre id=\"seen\">").unwrap_or_else(|| panic!("its script did not run: {document}"));
    serde_json::from_str(rest.split_once("</pre>").unwrap().0).unwrap()
}

/// Returns the mean lightness, from 0 to 255, and the number of colours.
fn light_and_colours(file: &Path) -> (f64, usize) {
    let mut reader = png::Decoder::new(BufReader::new(File::open(file).unwrap())).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut bytes).unwrap();
    let pixels: Vec<[u8; 3]> =
        bytes[..frame.buffer_size()].chunks(frame.color_type.samples()).map(|p| [p[0], p[1], p[2]]).collect();
    let sum: u64 = pixels.iter().flatten().map(|part| u64::from(*part)).sum();
    let mut colours = pixels.clone();
    colours.sort_unstable();
    colours.dedup();
    (sum as f64 / (3 * pixels.len()) as f64, colours.len())
}

/// Tables that hold nothing, of this process.
fn empty_tables() {
    const LEN: usize = 256 << 20;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address, and no other pointer to it exists; its pages are
    // written before they are discarded.
    unsafe {
        let start = mmap_anonymous(ptr::null_mut(), LEN, prot, MapFlags::PRIVATE | MapFlags::NORESERVE).unwrap();
        let _ = madvise(start, LEN, Advice::LinuxNoHugepage);
        for at in (0..LEN).step_by(2 << 20) {
            start.cast::<u8>().add(at).write_volatile(1);
            if at % (6 << 20) != 0 {
                madvise(start.add(at), 4096, Advice::LinuxDontNeed).unwrap();
            }
        }
    }
}

#[test]
#[ignore = "needs chromium, which ./x test installs"]
fn the_page_is_fit_to_be_seen() {
    empty_tables();
    let kept = std::env::var_os("VELLUM_PAGES").map(std::path::PathBuf::from);
    let own = tempfile::tempdir().unwrap();
    let folder = kept.as_deref().unwrap_or(own.path());
    let pid = std::process::id().to_string();
    for (name, words) in [("one", &[&*pid][..]), ("group", &["--children", &pid])] {
        let file = folder.join(name).with_extension("html");
        let inspect = Command::new(env!("CARGO_BIN_EXE_vellum"))
            .args(["inspect", "--html"])
            .arg(&file)
            .args(words)
            .output()
            .unwrap();
        assert!(inspect.status.success(), "{}", String::from_utf8_lossy(&inspect.stderr));
        let page = fs::read_to_string(&file).unwrap();
        let looked = format!("{name}-looked-at.html");
        fs::write(folder.join(&looked), page.replace("</body>", &format!("{LOOK}</body>"))).unwrap();
        for (width, scheme) in [(1280, "1"), (500, "1"), (1280, "0")] {
            let seen = seen(folder, &looked, width, &[&format!("--blink-settings=preferredColorScheme={scheme}")]);
            assert_eq!(seen["title"], "Vellum: page tables of live processes");
            assert_eq!(seen["dark"], scheme == "0");
            assert_eq!(seen["requests"], Value::Array(vec![]), "it is complete in itself");
            assert_eq!((&seen["wide"], &seen["width"]), (&0.into(), &width.into()), "wider than the window: {seen}");
            assert_eq!((&seen["dead"], &seen["flat"]), (&0.into(), &0.into()), "{seen}");
            assert!(seen["cells"].as_u64() > Some(10) && seen["rows"].as_u64() > Some(10), "{seen}");
        }
        let shot = |scheme: &str| {
            let shot = folder.join(format!("{name}-{scheme}.png"));
            let (words, scheme) =
                (format!("--screenshot={}", shot.display()), format!("preferredColorScheme={scheme}"));
            let words = [&*words, "--window-size=1280,2400", &format!("--blink-settings={scheme}")];
            browser(folder, &format!("{name}.html"), &words);
            light_and_colours(&shot)
        };
        let ((light, colours), (dark, dark_colours)) = (shot("1"), shot("0"));
        assert!(light > 200.0 && dark < 60.0, "light {light}, dark {dark}");
        assert!(colours > 20 && dark_colours > 20, "{colours} and {dark_colours} colours: is there anything on it?");
        let paper = folder.join(format!("{name}.pdf"));
        browser(folder, &format!("{name}.html"), &[&format!("--print-to-pdf={}", paper.display())]);
        let paper = fs::read(paper).unwrap();
        assert!(paper.starts_with(b"%PDF"));
        let sheets = String::from_utf8_lossy(&paper).matches("/Type /Page\n").count();
        assert!((1..20).contains(&sheets), "{sheets} sheets of paper");
    }
}
