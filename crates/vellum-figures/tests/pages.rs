//! The documents show what was measured, and nothing else.

use std::collections::BTreeMap;

use serde_json::json;
use vellum_figures::{Plan, Results, Statement, changed_pages, fill, missing_statements, root};

#[test]
fn pages_show_what_was_measured() {
    let changed = changed_pages(&root()).unwrap();
    let pages: Vec<_> = changed.iter().map(|(page, _)| page.display()).collect();
    assert!(pages.is_empty(), "tables differ from docs/figures; run ./x figures --tables: {pages:#?}");
}

#[test]
fn prose_states_what_was_measured() {
    let missing = missing_statements(&root()).unwrap();
    assert!(missing.is_empty(), "pages lack these statements of the plan; change the page, or the plan: {missing:#?}");
}

#[test]
fn a_statement_has_the_least_and_the_greatest_figure_of_its_rows() {
    let all = BTreeMap::from([("unmap".to_owned(), results("c"))]);
    for (says, figures, expected) in [
        ("it takes {} times\nas long", r#""unmap op=munmap: linux/vellum""#, Some("it takes 25 to 3000 times as long")),
        ("{}, and {}", r#""unmap huge=true: vellum", "unmap op=exit: vellum""#, Some("1.00 µs, and 4.00 µs")),
        ("{} times", r#""unmap op=munmap huge=false: linux/vellum""#, Some("25 times")),
        ("{}", r#""unmap op=exit: linux""#, None),
        ("{}", r#""unmap op=fork: linux""#, None),
        ("{}", r#""unmap: floor""#, None),
        ("{} and {}", r#""unmap huge=true: vellum""#, None),
        ("none", r#""unmap huge=true: vellum""#, None),
    ] {
        let toml = format!("page = \"p\"\nsays = \"\"\"{says}\"\"\"\nfigures = [{figures}]");
        let statement: Statement = toml::from_str(&toml).unwrap();
        assert_eq!(statement.words(&all).ok().as_deref(), expected, "{says}");
    }
}

/// Returns the places that a text has for figures that were not measured yet: `@NAME@`, of capital
/// letters and digits.
fn placeholders(text: &str) -> Vec<&str> {
    let is_name = |word: &&str| {
        !word.is_empty() && word.chars().all(|letter| letter.is_ascii_uppercase() || letter.is_ascii_digit())
    };
    let mut words = text.split('@').skip(1).peekable();
    // The last word has no second `@` behind it.
    std::iter::from_fn(|| words.next().filter(|_| words.peek().is_some())).filter(is_name).collect()
}

#[test]
fn pages_have_no_placeholders() {
    assert_eq!(placeholders("@A1@, a@b.c, @a@ @@ @B@C @D"), ["A1", "B"]);
    for page in ["README.md", "docs/benchmarks.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        assert_eq!(placeholders(&text), Vec::<&str>::new(), "{page} has figures that were not measured");
    }
}

/// Returns the results of an experiment with three rows, on a commit.
fn results(commit: &str) -> Results {
    let lines = [
        json!({"machine": {"CPU": "a CPU", "kernel": "Linux 9"}}),
        json!({"op": "munmap", "folio_kib": 4, "huge": false, "vellum_ns": 2000, "linux_ns": 50000,
            "min": {"vellum_ns": 1500}, "max": {"vellum_ns": 2500}}),
        json!({"op": "exit", "folio_kib": 4, "huge": false, "vellum_ns": 4000, "linux_ns": null}),
        json!({"op": "munmap", "folio_kib": 2048, "huge": true, "vellum_ns": 1000, "linux_ns": 3000000}),
    ];
    let lines = lines.map(|line| line.to_string()).join("\n");
    Results::of_lines(&lines, "vellum bench unmap".into(), commit.into(), "2026-01-02".into()).unwrap()
}

fn plan(rows: &str, columns: &str) -> Plan {
    toml::from_str(&format!(
        "[experiment.unmap]\nrun = \"bench unmap\"\n[table.t]\nrows = [{rows}]\ncolumns = [{columns}]"
    ))
    .unwrap()
}

/// Fills a page that has the one table of a plan.
fn filled(plan: &Plan) -> anyhow::Result<String> {
    let all = BTreeMap::from([("unmap".to_owned(), results("0123456789abcdef"))]);
    fill("before\n<!-- figures: t -->\nold\n<!-- end of figures -->\nafter\n", plan, &all)
}

#[test]
fn small_regions_are_told_apart_by_their_length() {
    let lines = [
        json!({"machine": {"CPU": "a CPU", "kernel": "Linux 9"}}),
        json!({"region_kib": 16, "folio_kib": 4, "huge": false, "vellum_ns": 400}),
        json!({"region_kib": 1024, "folio_kib": 4, "huge": false, "vellum_ns": 900}),
    ];
    let lines = lines.map(|line| line.to_string()).join("\n");
    let small = Results::of_lines(&lines, "vellum bench small".into(), "0".into(), "2026-01-02".into()).unwrap();
    let all = BTreeMap::from([("unmap".to_owned(), small)]);
    let plan = plan(r#""unmap""#, r#""region", "folio", "vellum""#);
    let page = fill("<!-- figures: t -->\n<!-- end of figures -->\n", &plan, &all).unwrap();
    assert!(page.contains("| 16 KiB | 4 KiB | 400 ns |\n| 1 MiB | 4 KiB | 900 ns |\n"), "{page}");
}

#[test]
fn a_table_has_a_row_for_each_label_and_a_column_for_each_figure() {
    let plan = plan(
        r#""unmap""#,
        r#""folio", "munmap = op=munmap vellum", "exit = op=exit vellum",
           "linux / vellum = op=munmap linux/vellum", "op=exit linux""#,
    );
    let page = filled(&plan).unwrap();
    let expected = "before
<!-- figures: t -->
| folio | munmap | exit | linux / vellum | op=exit linux |
|---|---|---|---|---|
| 4 KiB | 2.00 µs (1.50–2.50) | 4.00 µs | 25× | – |
| 2 MiB huge | 1.00 µs | – | 3000× | – |

Measured on 2026-01-02 at commit 0123456789ab, on a CPU under Linux 9, by `vellum bench unmap`.
<!-- end of figures -->
after
";
    assert_eq!(page, expected);
}

/// Returns the table with the last column of a plan, which is filled with one row.
fn shown(row: serde_json::Value, column: &str) -> String {
    let lines = format!("{}\n{row}", json!({"machine": {}}));
    let results = Results::of_lines(&lines, "vellum".into(), "c".into(), "2026-01-02".into()).unwrap();
    let all = BTreeMap::from([("unmap".to_owned(), results)]);
    let plan = plan(r#""unmap""#, &format!(r#""op", "{column}""#));
    fill("<!-- figures: t -->\n<!-- end of figures -->", &plan, &all).unwrap()
}

#[test]
fn a_ratio_of_times_has_two_digits_and_one_of_counts_three() {
    for (linux, times, counts) in [
        (5_720, "5.7×", "5.72×"),
        (67_240, "67×", "67.2×"),
        (690, "0.69×", "0.69×"),
        (9_960, "10×", "9.96×"),
        (1_234_000, "1200×", "1234×"),
        (0, "0.00×", "0.00×"),
    ] {
        let page = shown(json!({"op": "o", "vellum_ns": 1000, "linux_ns": linux}), "linux/vellum");
        assert!(page.contains(&format!("| o | {times} |")), "{page}");
        let page = shown(json!({"op": "o", "vellum_fork": 1000, "linux_fork": linux}), "linux_fork/vellum_fork");
        assert!(page.contains(&format!("| o | {counts} |")), "{page}");
    }
}

#[test]
fn a_ratio_of_times_is_the_lowest_and_the_highest_of_the_passes() {
    for (vellum, linux, expected) in [
        ([1000, 2000, 1500], [17_100, 44_400, 30_000], "17–22×"),
        ([1000, 1000, 1000], [9_960, 690, 690], "0.69–10×"),
        ([1000, 1000, 1000], [17_100, 17_400, 17_300], "17×"),
    ] {
        let row = json!({"op": "o", "vellum_ns": 1000, "linux_ns": 50_000,
            "passes": {"vellum_ns": vellum, "linux_ns": linux}});
        let page = shown(row.clone(), "linux/vellum");
        assert!(page.contains(&format!("| o | {expected} |")), "{page}");
        let page = shown(row, "vellum:linux");
        assert!(page.contains(&format!("| o | 1000 / 50000 = **{expected}** |")), "{page}");
    }
    let without = json!({"op": "o", "vellum_ns": 1000, "linux_ns": 17_000,
        "passes": {"vellum_ns": [1000, 2000], "linux_ns": [17_000, null]}});
    assert!(shown(without, "linux/vellum").contains("| o | 17× |"), "a pass lacks the figure");
}

#[test]
fn a_time_that_is_lost_in_noise_has_no_ratio() {
    for (linux, expected) in [(2999, "–"), (3000, "3.0×"), (0, "–")] {
        let row = json!({"op": "o", "vellum_ns": 1000, "linux_ns": linux, "linux_noise_ns": 1000,
            "passes": {"vellum_ns": [1000], "linux_ns": [linux]}});
        let page = shown(row, "linux/vellum");
        assert!(page.contains(&format!("| o | {expected} |")), "{page}");
    }
}

#[test]
fn kilobytes_are_whole_numbers() {
    let mut all = BTreeMap::from([("unmap".to_owned(), results("c"))]);
    all.get_mut("unmap").unwrap().rows[0].insert("linux_kb".into(), 102_652.into());
    let plan = plan(r#""unmap op=munmap huge=false""#, r#""folio", "tables = linux_kb""#);
    let page = fill("<!-- figures: t -->\n<!-- end of figures -->", &plan, &all).unwrap();
    assert!(page.contains("| 4 KiB | 102\u{202f}652 kB |"), "{page}");
}

#[test]
fn labels_name_rows_of_the_plan() {
    let page = filled(&plan(
        r#""unmap op=munmap folio_kib=4: the first", "unmap huge=true: the second""#,
        r#""label", "vellum:linux""#,
    ));
    let page = page.unwrap();
    assert!(
        page.contains("| the first | 2000 / 50000 = **25×** |\n| the second | 1000 / 3000000 = **3000×** |\n"),
        "{page}"
    );
}

#[test]
fn counts_are_shown_in_full_and_sizes_in_their_unit() {
    let lines = "{\"machine\":{}}\n{\"op\":\"touch\",\"faults\":262144,\"share\":1234.56,\"vellum_bytes\":3145728}";
    let results = Results::of_lines(lines, "vellum".into(), "c".into(), "2026-01-02".into()).unwrap();
    let plan = plan(r#""unmap""#, r#""op", "faults", "share", "vellum_bytes""#);
    let all = BTreeMap::from([("unmap".to_owned(), results)]);
    let page = fill("<!-- figures: t -->\n<!-- end of figures -->\n", &plan, &all).unwrap();
    assert!(page.contains("| touch | 262\u{202f}144 | 1235 | 3 MiB |\n"), "{page}");
}

#[test]
fn what_was_not_measured_is_an_error() {
    for (rows, columns, says) in [
        (r#""unmap op=fork""#, r#""folio""#, "no such row"),
        (r#""fork""#, r#""folio""#, "no experiment \"fork\""),
        (r#""unmap""#, r#""folio", "page""#, "no figure \"page\""),
        (r#""unmap op""#, r#""folio""#, "no condition"),
    ] {
        let error = format!("{:#}", filled(&plan(rows, columns)).unwrap_err());
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn results_survive_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("unmap.json");
    std::fs::write(&path, results("c").text()).unwrap();
    let read = Results::read(&path).unwrap();
    assert_eq!(read.text(), results("c").text());
    assert_eq!(read.rows.len(), 3);
}

#[test]
fn tables_are_not_made_of_results_of_two_runs() {
    let folder = tempfile::tempdir().unwrap();
    let figures = folder.path().join("docs/figures");
    std::fs::create_dir_all(&figures).unwrap();
    let plan: Plan =
        toml::from_str("[experiment.a]\nrun = \"bench unmap\"\n[experiment.b]\nrun = \"bench unmap\"\n[table]")
            .unwrap();
    for (commits, same) in [(["c", "c"], true), (["c", "d"], false)] {
        for (name, commit) in ["a", "b"].iter().zip(commits) {
            std::fs::write(figures.join(format!("{name}.json")), results(commit).text()).unwrap();
        }
        let read = plan.results(folder.path());
        assert_eq!(read.is_ok(), same, "{commits:?}");
    }
}

#[test]
fn results_of_simulators_do_not_hide_a_second_machine() {
    let folder = tempfile::tempdir().unwrap();
    let figures = folder.path().join("docs/figures");
    std::fs::create_dir_all(&figures).unwrap();
    let plan: Plan = toml::from_str(
        "[experiment.a]\nrun = \"compare\"\n[experiment.b]\nrun = \"bench unmap\"\n\
         [experiment.c]\nrun = \"bench unmap\"\n[table]",
    )
    .unwrap();
    for (cpus, same) in [(["a CPU", "a CPU"], true), (["a CPU", "another"], false)] {
        std::fs::write(figures.join("a.json"), counted().text()).unwrap();
        for (name, cpu) in ["b", "c"].iter().zip(cpus) {
            let mut results = results("c");
            results.machine.insert("CPU".into(), cpu.into());
            std::fs::write(figures.join(format!("{name}.json")), results.text()).unwrap();
        }
        let read = plan.results(folder.path());
        assert_eq!(read.is_ok(), same, "{cpus:?}: {:?}", read.err());
    }
}

/// Returns the results of a comparison of kernels, on the commit `c`.
fn counted() -> Results {
    let lines = [
        json!({"compare": {"arch": "x86_64", "runs": 5, "kernels": {"linux": "9.1-cloud", "minimal": "9.1"}}}),
        json!({"arm": "random", "folio": "4 KiB", "vellum_fork": 50, "linux_fork": 400, "minimal_fork": 200}),
    ];
    let lines = lines.map(|line| line.to_string()).join("\n");
    Results::of_lines(&lines, "vellum compare".into(), "c".into(), "2026-01-02".into()).unwrap()
}

#[test]
fn a_table_of_counts_names_the_kernels_that_were_compared() {
    let plan: Plan = toml::from_str(
        "[experiment.counts]\nrun = \"compare\"\n[table.t]\nrows = [\"counts arm=random\"]\n\
         columns = [\"folio\", \"fork = vellum_fork:linux_fork:minimal_fork\"]",
    )
    .unwrap();
    let all = BTreeMap::from([("counts".to_owned(), counted())]);
    let page = fill("<!-- figures: t -->\n<!-- end of figures -->", &plan, &all).unwrap();
    assert!(page.contains("| 4 KiB | 50.0 / 400 / 200 = **8.00×**, **4.00×** |"), "{page}");
    assert!(page.contains("at commit c, against Linux 9.1-cloud and 9.1 (minimal), by `vellum compare`."), "{page}");
}

#[test]
fn a_table_of_counts_says_how_much_the_runs_differed() {
    let (mut first, mut second) = (counted(), counted());
    first.machine.insert("spread".into(), json!({"vellum": 0.0012, "linux": 0.021}));
    second.machine.insert("spread".into(), json!({"vellum": 0.0001, "linux": 0.03}));
    let plan: Plan = toml::from_str(
        "[experiment.a]\nrun = \"compare\"\n[experiment.b]\nrun = \"compare\"\n[table.t]\n\
         rows = [\"a\", \"b\"]\ncolumns = [\"folio\", \"vellum_fork\"]",
    )
    .unwrap();
    let all = BTreeMap::from([("a".to_owned(), first), ("b".to_owned(), second)]);
    let page = fill("<!-- figures: t -->\n<!-- end of figures -->", &plan, &all).unwrap();
    let page = page.replace('\n', " ");
    let expected = "by `vellum compare`; runs differed by at most 0.2 % (vellum), 3.0 % (linux).";
    assert!(page.contains(expected), "the greatest of all results, rounded up: {page}");
}

#[test]
fn counts_of_a_repetition_differ_by_at_most_three_percent() {
    let (first, mut again) = (counted(), counted());
    again.rows[0].insert("linux_fork".into(), 411.into());
    assert!(first.compare(&again).outside.is_empty());
    again.rows[0].insert("linux_fork".into(), 413.into());
    assert_eq!(first.compare(&again).outside.len(), 1);
}

#[test]
fn memory_of_a_repetition_differs_by_at_most_three_percent() {
    let measured = |kb: u64, bytes: u64| {
        let row = json!({"bench": "tables", "variant": "2m", "span": 1, "linux_kb": kb, "linux_bytes_a_gib": bytes});
        let lines = format!("{}\n{row}", json!({"machine": {}}));
        Results::of_lines(&lines, "vellum bench tables".into(), "c".into(), "2026-01-02".into()).unwrap()
    };
    let first = measured(1000, 2000);
    let same = first.compare(&measured(1030, 1950));
    assert_eq!((same.figures, same.outside.len()), (2, 0));
    assert_eq!(first.compare(&measured(1031, 1941)).outside.len(), 2);
}

#[test]
fn a_repetition_outside_the_range_is_reported() {
    let first = results("c");
    let same = first.compare(&first);
    assert!(same.outside.is_empty() && same.figures == 1, "only one figure has a range");
    let mut again = results("c");
    again.rows[0].insert("vellum_ns".into(), 2501.into());
    // A row is told from others by its address space and way of discarding, too.
    for (field, other) in [("space", "one"), ("variant", "1m")] {
        let mut first = results("c");
        first.rows[0].insert(field.into(), other.into());
        assert!(first.compare(&results("c")).outside[0].contains("not measured again"), "{field}");
    }
    let lines = first.compare(&again).outside;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("op=\"munmap\"") && lines[0].contains("1500.0000 to 2500.0000"), "{lines:?}");
}

#[test]
fn a_repetition_is_compared_with_the_same_contender_and_the_same_work_beside() {
    let row = |column: &str, beside: &str, ns: u64| {
        json!({"op": "fork", "column": column, "beside": beside, "p99_ns": ns, "min": {"p99_ns": ns},
            "max": {"p99_ns": ns}})
    };
    let rows = [row("vellum", "nothing", 1), row("linux", "nothing", 2), row("linux", "reclaim", 3)];
    let lines = std::iter::once(json!({"machine": {}})).chain(rows).map(|line| line.to_string());
    let lines = lines.collect::<Vec<_>>().join("\n");
    let results = Results::of_lines(&lines, "vellum".into(), "c".into(), "2026-01-02".into()).unwrap();
    let same = results.compare(&results);
    assert_eq!((same.figures, same.outside.len()), (3, 0));
}

#[test]
fn a_margin_widens_the_ranges_of_its_figures() {
    let mut first = results("c");
    first.margins = BTreeMap::from([("vellum_ns".to_owned(), 0.25), ("linux_ns".to_owned(), 9.0)]);
    let mut again = results("c");
    for (ns, outside) in [(1199, 1), (1200, 0), (3125, 0), (3126, 1)] {
        again.rows[0].insert("vellum_ns".into(), ns.into());
        assert_eq!(first.compare(&again).outside.len(), outside, "{ns}");
    }
    let all = BTreeMap::from([("unmap".to_owned(), first)]);
    let plan = plan(r#""unmap op=munmap huge=false""#, r#""folio", "vellum""#);
    let page = fill("<!-- figures: t -->\n<!-- end of figures -->", &plan, &all).unwrap();
    assert!(page.contains("| 4 KiB | 2.00 µs (1.20–3.12) |"), "{page}");
}

#[test]
fn a_range_whose_margin_is_capped_is_marked() {
    for (margin, marked) in [(0.999, false), (1.0, true)] {
        let mut results = results("c");
        results.margins = BTreeMap::from([("vellum_ns".to_owned(), margin)]);
        let all = BTreeMap::from([("unmap".to_owned(), results)]);
        let plan = plan(r#""unmap op=munmap""#, r#""folio", "vellum""#);
        let page = fill("<!-- figures: t -->\n<!-- end of figures -->", &plan, &all).unwrap();
        assert_eq!(page.contains(") † |"), marked, "{page}");
        assert_eq!(page.contains("† The margin is capped"), marked, "{page}");
        assert!(page.contains("| 2 MiB huge | 1.00 µs |"), "no range, so no mark: {page}");
    }
}

#[test]
fn an_aim_for_times_is_counted_at_the_ends_of_the_ranges_too() {
    let row = |op: &str, vellum_most: u64, linux_least: u64| {
        json!({"op": op, "folio_kib": 4, "vellum_ns": 100, "linux_ns": 1000,
            "min": {"vellum_ns": 50, "linux_ns": linux_least}, "max": {"vellum_ns": vellum_most, "linux_ns": 2000}})
    };
    let rows = [row("munmap", 120, 900), row("exit", 120, 899)].map(|row| row.to_string()).join("\n");
    let lines = format!("{}\n{rows}", json!({"machine": {}}));
    let mut results = Results::of_lines(&lines, "vellum".into(), "c".into(), "2026-01-02".into()).unwrap();
    // The ranges of a page have the margin.
    results.margins = BTreeMap::from([("vellum_ns".to_owned(), 0.5)]);
    let all = BTreeMap::from([("unmap".to_owned(), results)]);
    let plan: Plan = toml::from_str(
        r#"[experiment.unmap]
        run = "bench unmap"
        [table]
        [[aims.t]]
        label = "five times"
        rows = ["unmap"]
        ratios = ["linux/vellum"]
        least = 5
        [[aims.t]]
        label = "a fifth"
        rows = ["unmap"]
        ratios = ["vellum/linux"]
        most = 0.2
        "#,
    )
    .unwrap();
    let page = fill("<!-- figures: t -->\n<!-- end of figures -->", &plan, &all).unwrap();
    assert!(page.contains("| five times | 2 | 2 | 1 | 10×: `munmap`, 4 KiB |"), "{page}");
    assert!(page.contains("| a fifth | 2 | 2 | 1 | 0.10×: `munmap`, 4 KiB |"), "{page}");
}

#[test]
fn an_aim_is_kept_by_some_figures_and_missed_by_others() {
    let plan: Plan = toml::from_str(
        r#"[experiment.unmap]
        run = "bench unmap"
        [table]
        [[aims.t]]
        label = "ten times"
        rows = ["unmap op=munmap"]
        ratios = ["linux/vellum"]
        least = 30
        [[aims.t]]
        label = "at most half of it"
        rows = ["unmap op=munmap huge=false"]
        ratios = ["vellum/vellum"]
        most = 0.5
        against = "op=exit"
        [[aims.t]]
        label = "without the other row"
        rows = ["unmap op=exit"]
        ratios = ["vellum/vellum"]
        least = 1.5
        less = "op=munmap"
        "#,
    )
    .unwrap();
    let page = filled(&plan).unwrap();
    for line in [
        "| ten times | 2 | 1 | – | 25×: `munmap`, 4 KiB |",
        "| at most half of it | 1 | 1 | – | 0.50×: `munmap`, 4 KiB |",
        "| without the other row | 1 | 0 | – | 1.0×: `exit`, 4 KiB |",
    ] {
        assert!(page.contains(line), "{page}");
    }
    let error = toml::from_str::<Plan>(
        "[experiment.unmap]\nrun = \"bench unmap\"\n[table]\n\
         [[aims.t]]\nlabel = \"l\"\nrows = [\"unmap\"]\nratios = []",
    );
    assert!(format!("{:#}", filled(&error.unwrap()).unwrap_err()).contains("no bound"));
}
