//! Pages of `brodo report` in a real browser: headless Chromium, driven by ChromeDriver ([`webdriver`]).
//!
//! Without them the tests are skipped, with a message. `make report-test` runs them alone and prints the time
//! in which a page opens; `BRODO_SCREENSHOTS=FOLDER` keeps pictures of all that is looked at.

mod logs;
mod webdriver;

use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use webdriver::{Browser, Screen};

/// A page that is removed with its folder.
struct Page {
    folder: PathBuf,
    file: PathBuf,
}

impl Page {
    /// The page of these logs.
    fn of(test: &str, flows: &str, audit: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("brodo-report-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a directory");
        let path = |name: &str| folder.join(name);
        std::fs::write(path("flows.jsonl"), flows).expect("a file");
        std::fs::write(path("audit.jsonl"), audit).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_brodo"));
        command
            .arg("report")
            .args([path("flows.jsonl"), path("audit.jsonl")])
            .arg("-o")
            .arg(path("page.html"));
        assert!(command.status().expect("brodo starts").success());
        let file = path("page.html");
        Self { folder, file }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

const WIDE: Screen = Screen { name: "light", width: 1280, is_dark: false, is_paper: false };

#[test]
fn the_page_fits_screens_and_paper() {
    let Some(browser) = Browser::start("screens") else { return };
    let page = Page::of("screens", &logs::build(), &logs::audit());
    for screen in [
        WIDE,
        Screen { name: "dark", is_dark: true, ..WIDE },
        Screen { name: "telephone", width: 390, ..WIDE },
        Screen { name: "telephone-dark", width: 360, is_dark: true, ..WIDE },
        Screen { name: "paper", width: 700, is_paper: true, is_dark: true },
    ] {
        browser.show_on(screen);
        browser.open(&page.file);
        browser.screenshot(screen.name);
        let is_overflowing =
            "const root = document.documentElement; return root.scrollWidth > root.clientWidth";
        assert_eq!(browser.run(is_overflowing), json!(false), "{screen:?}: nothing hangs over the edge");
        let ground = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)";
        let ground = browser.run(ground);
        let is_light = ground[0].as_u64().expect("red") > 128;
        assert_eq!(is_light, !screen.is_dark || screen.is_paper, "{screen:?}: {ground}");
        let shown = |what: &str| {
            browser
                .run(&format!("return getComputedStyle(document.querySelector('{what}')).display !== 'none'"))
        };
        let is_narrow = screen.width < 600;
        assert_eq!(shown("svg.narrow"), json!(is_narrow), "{screen:?}");
        assert_eq!(shown("svg.wide"), json!(!is_narrow), "{screen:?}");
        assert_eq!(shown(".tools"), json!(!screen.is_paper), "{screen:?}");
        // Every text of the drawing lies inside it.
        let outside = "return [...document.querySelectorAll('svg')].filter((svg) => svg.clientWidth > 0).flatMap((svg) => {\
                       const box = svg.getBoundingClientRect();\
                       return [...svg.querySelectorAll('text')].filter((text) => {\
                         const inner = text.getBoundingClientRect();\
                         return inner.left < box.left - 1 || inner.right > box.right + 1; }).map((text) => text.textContent) })";
        assert_eq!(browser.run(outside), json!([]), "{screen:?}");
    }
}

#[test]
fn hostile_names_stay_text() {
    let Some(browser) = Browser::start("hostile") else { return };
    let markup = "</td></script><script>window.taken = 1</script><img src=x onerror=\"window.taken = 1\">";
    let turned = "\u{202e}elpmaxe.live\u{0}";
    let flows = [logs::flow(markup, 1.0, 443), logs::flow(turned, 2.0, 443)].concat();
    let page = Page::of("hostile", &flows, &logs::refused_question(markup));
    browser.show_on(WIDE);
    browser.open(&page.file);
    browser.screenshot("hostile");
    assert_eq!(browser.run("return window.taken === undefined"), json!(true));
    assert_eq!(
        browser.run("return document.querySelectorAll('img, iframe, a, form, body script').length"),
        json!(2)
    );
    assert_eq!(browser.run("return performance.getEntriesByType('resource').length"), json!(0));
    let text = browser.run("return document.getElementById('reached').innerText");
    let text = text.as_str().expect("text");
    assert!(text.contains(markup) && text.contains("\\u{202e}elpmaxe.live\\u{0}"), "{text}");
    let refused = browser.run("return document.getElementById('refused').innerText");
    assert!(refused.as_str().expect("text").contains(markup), "{refused}");
}

#[test]
fn tables_are_sorted_and_searched() {
    let Some(browser) = Browser::start("tables") else { return };
    let page = Page::of("tables", &logs::build(), &logs::audit());
    browser.show_on(WIDE);
    browser.open(&page.file);
    let names = || {
        browser.run(
            "return [...document.querySelectorAll('#reached tbody td:first-child > span')].map((cell) => cell.firstChild.data)",
        )
    };
    let sorted = |by: &str| {
        browser.run(&format!(
            "[...document.querySelectorAll('#reached th button')].find((it) => it.textContent === '{by}').click()"
        ));
        names()
    };
    let by_bytes = names();
    assert_eq!(by_bytes[0], json!(logs::LARGEST), "{by_bytes}");
    let mut expected: Vec<_> = by_bytes.as_array().expect("names").clone();
    expected.sort_by_key(|name| name.as_str().map(str::to_owned));
    assert_eq!(sorted("Name or address"), Value::from(expected.clone()));
    expected.reverse();
    assert_eq!(sorted("Name or address"), Value::from(expected.clone()));
    let search = |text: &str| {
        browser.run(&format!(
            "const box = document.querySelector('#reached input'); box.value = '{text}'; box.dispatchEvent(new Event('input'))"
        ));
        names()
    };
    assert_eq!(search("CRATES"), json!(["static.crates.io", "index.crates.io"]));
    assert_eq!(search("192.0.2.9"), json!([logs::LARGEST]), "addresses are searched too");
    assert_eq!(search("no such name"), json!([]));
    assert_eq!(search("").as_array().map(Vec::len), Some(expected.len()));
    // A telephone shows no headings: the order is a list of choices.
    browser.run(
        "const choice = document.querySelector('#reached select'); choice.selectedIndex = 0; choice.dispatchEvent(new Event('change'))",
    );
    expected.reverse();
    assert_eq!(names(), Value::from(expected));
    let rules =
        browser.run("return [...document.querySelectorAll('#refused code')].map((it) => it.textContent)");
    assert_eq!(rules, json!(["static.example.org"]), "the rule that would allow it");
}

/// Prints the time to the end of loading, in the browser's own account: the goal is two seconds.
#[test]
fn a_hundred_thousand_flows_open() {
    let Some(browser) = Browser::start("many") else { return };
    let page = Page::of("many", &logs::many(100_000), "");
    browser.show_on(WIDE);
    for _ in 0..3 {
        browser.open(&page.file);
        let loaded = browser.run("return performance.getEntriesByType('navigation')[0].loadEventEnd");
        let loaded = loaded.as_f64().expect("milliseconds");
        eprintln!("a page of 100,000 flows to as many destinations: loaded after {loaded:.0} ms");
        assert!(loaded > 0.0 && loaded < 120_000.0, "{loaded}");
    }
    browser.screenshot("many");
    assert_eq!(
        browser.run("return document.querySelector('#reached .tools span').textContent"),
        json!("250 of 100,000")
    );
    assert_eq!(browser.run("return document.querySelectorAll('#reached tbody tr').length"), json!(250));
    browser.run("document.querySelector('#reached .more').click()");
    assert_eq!(browser.run("return document.querySelectorAll('#reached tbody tr').length"), json!(1250));
}
