//! Writes a report as a self-contained web page: no script, no font, nothing to load.

use maud::{Markup, PreEscaped, html};
use vellum_inspect::report::page::document;

use super::{Chart, Part, Report, Section, Table, Value, chart};

/// Returns the page of a report.
///
/// # Errors
/// A chart can't be drawn.
pub fn page(report: &Report) -> anyhow::Result<String> {
    let sections: anyhow::Result<Vec<Markup>> = report.sections.iter().map(section).collect();
    let body = html! {
        header {
            p.brand { "Vellum" }
            h1 { "Memory management by the run" }
            p.lead {
                "A run is a range of consecutive page-table entries that map consecutive frames with equal attributes. \
                 Here is what memory operations cost: a lower bound, in the engine that works by runs, and in the \
                 kernel of the machine below."
            }
            dl.machine {
                @for (name, value) in &report.machine.facts { div { dt { (name) } dd { (value) } } }
            }
            @if let Some(busy) = &report.machine.busy { p.note { (busy) } }
        }
        main { @for section in sections? { (section) } }
    };
    Ok(document("Vellum: memory management by the run", "", &body))
}

fn section(section: &Section) -> anyhow::Result<Markup> {
    let parts: anyhow::Result<Vec<Markup>> = section.parts.iter().map(part).collect();
    Ok(html! {
        section id=(section.id) {
            h2 { (section.title) }
            @for part in parts? { (part) }
            @if !section.notes.is_empty() {
                h3 { "Notes" }
                ul.notes { @for note in &section.notes { li { (note) } } }
            }
            h3 { "How it was measured" }
            @for (term, text) in &section.method { p { @if !term.is_empty() { strong { (term) } " " } (text) } }
        }
    })
}

fn part(part: &Part) -> anyhow::Result<Markup> {
    let chart = part.chart.as_ref().map(figure).transpose()?.flatten();
    Ok(html! {
        article {
            h3 { (part.title) }
            @if !part.text.is_empty() { p { (part.text) } }
            @if let Some(chart) = chart { (chart) }
            (table(&part.table))
        }
    })
}

fn figure(chart: &Chart) -> anyhow::Result<Option<Markup>> {
    Ok(chart::svg(chart)?.map(|svg| {
        html! {
            figure {
                div role="img" aria-label=(chart.label) { (PreEscaped(svg)) }
                figcaption {
                    span.legend {
                        @for series in &chart.series {
                            span.key style=(format!("--key: var(--{})", series.ink.name())) { (series.name) }
                        }
                    }
                    (chart.label)
                }
            }
        }
    }))
}

fn table(table: &Table) -> Markup {
    html! {
        div.scroll {
            table {
                thead { tr { @for name in &table.head { th scope="col" { (name) } } } }
                tbody {
                    @for row in &table.rows {
                        tr { @for (at, value) in row.iter().enumerate() {
                            @if at == 0 { th scope="row" { (cell(value)) } } @else { td { (cell(value)) } }
                        } }
                    }
                }
            }
        }
    }
}

fn cell(value: &Value) -> Markup {
    html! {
        @match value {
            Value::None => span.none { "–" },
            Value::Text(text) => (text),
            Value::Figure { main, range } => { (main) " " span.range { (range) } },
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_escapes_its_texts_and_loads_nothing() {
        let page = super::page(&crate::bench::report::tests::example()).unwrap();
        for expected in
            ["An &lt;example&gt;", "Measured &amp; noted.", "one &lt;fast&gt;", "a &quot;picture&quot;", "<svg"]
        {
            assert!(page.contains(expected), "{expected}");
        }
        for loader in ["<script", "<link", "src=", "@import", "url("] {
            assert!(!page.contains(loader), "{loader}");
        }
    }
}
