//! Sums of a log with everything in it, and pages with hostile names.

use super::summary::Summary;
use super::{check_output, page};
use std::path::PathBuf;

fn line(name: &str, remote: &str, cause: &str, more: &str) -> String {
    let name = if name.is_empty() { String::new() } else { format!("\"name\":{name:?},") };
    format!(
        "{{\"time\":\"2026-11-21T18:42:30.000000Z\",{name}\"protocol\":\"tcp\",\"direction\":\"outbound\",\
         \"guest\":\"10.0.2.15:44330\",\"remote\":\"{remote}\",\"duration_us\":10000000,\
         \"from_guest\":{{\"bytes\":500,\"packets\":2}},\"to_guest\":{{\"bytes\":1500,\"packets\":3}},{more}\
         \"cause\":\"{cause}\"}}\n"
    )
}

fn opened(name: &str, remote: &str) -> String {
    line(name, remote, "finished", "\"id\":\"0:12.3\",")
}

fn denied(name: &str, remote: &str, rule: &str) -> String {
    line(name, remote, "denied", &format!("\"rule\":{rule:?},"))
}

fn summed(lines: &[String]) -> Summary {
    let mut summary = Summary::default();
    for line in lines {
        summary.add(line.as_bytes());
    }
    summary.finish();
    summary
}

#[test]
fn flows_are_summed_by_name_and_port() {
    let summary = summed(&[
        opened("a.example", "192.0.2.1:443"),
        opened("a.example", "192.0.2.2:443"),
        opened("a.example", "192.0.2.1:80"),
        opened("", "[2001:db8::1]:443"),
        "{\"time\":\"2026-11-21T18:42:30.000000Z\",\"lost\":7}\n".to_owned(),
        "no JSON\n".to_owned(),
    ]);
    let rows: Vec<_> =
        summary.reached.iter().map(|row| (row.name.as_str(), row.port, row.flows, row.out)).collect();
    assert_eq!(rows, [("a.example", 443, 2, 1000), ("a.example", 80, 1, 500), ("2001:db8::1", 443, 1, 500)]);
    assert_eq!(summary.reached[0].addresses, ["192.0.2.1", "192.0.2.2"]);
    assert_eq!((summary.lost, summary.unreadable, summary.omitted), (7, 1, 0));
    let timeline = summary.timeline();
    assert_eq!(timeline.to.zip(timeline.from).map(|(to, from)| to - from), Some(10_000));
    let sent: f64 = timeline.out.iter().sum();
    assert!((sent - 2000.0).abs() < 0.01, "{sent}");
    assert_eq!(timeline.lanes[0].label, "a.example:443");
    assert_eq!(timeline.lanes[0].total, 4000);
}

#[test]
fn refusals_have_the_rule_that_would_allow_them() {
    let summary = summed(&[
        denied("a.example", "192.0.2.1:443", "policy not-given-by-dns"),
        denied("a.example", "192.0.2.1:443", "policy not-given-by-dns"),
        denied("a.example.", "192.0.2.1:22", "policy default"),
        denied("", "[2001:db8::1]:80", "policy default"),
        denied("", "169.254.169.254:80", "floor link-local"),
        // By a gate, after it was opened.
        line("b.example", "192.0.2.3:443", "denied", "\"id\":\"0:1.1\",\"rule\":\"policy name\","),
    ]);
    let rows: Vec<_> =
        summary.refused.iter().map(|row| (row.what.as_str(), row.count, row.allow.as_deref())).collect();
    assert_eq!(
        rows,
        [
            ("tcp a.example:443", 2, Some("a.example")),
            ("tcp a.example.:22", 1, Some("tcp://a.example:22")),
            ("tcp 2001:db8::1:80", 1, Some("tcp://[2001:db8::1]:80")),
            ("tcp 169.254.169.254:80", 1, None),
            ("tcp b.example:443", 1, None),
        ]
    );
    let timeline = summary.timeline();
    assert_eq!(timeline.stopped.iter().sum::<u64>(), 6, "a mark for each");
    // The gate's is at the end of its flow, whose bytes were moved.
    assert_eq!(timeline.stopped.iter().rposition(|&marks| marks > 0), Some(239));
    let sent: f64 = timeline.out.iter().sum();
    assert!((sent - 500.0).abs() < 0.01, "{sent}");
}

fn decision(stage: &str, verdict: &str, reason: &str, more: &str) -> String {
    format!(
        "{{\"seq\":7,\"time\":\"2026-11-21T18:42:31.000312Z\",\"stage\":{stage:?},\"verdict\":{verdict:?},\
         \"reason\":{reason:?},{more}\"count\":12}}\n"
    )
}

#[test]
fn an_audit_log_adds_refused_questions_and_each_refused_flow_counts_once() {
    let refused =
        decision("open", "deny", "policy default", "\"protocol\":\"tcp\",\"remote\":\"192.0.2.9:22\",");
    let audit = [
        decision("question", "deny", "policy question", "\"name\":\"Evil.example\","),
        decision("question", "deny", "deny ads.example", "\"name\":\"ads.example\","),
        decision("question", "allow", "allow a.example", "\"name\":\"a.example\","),
        decision(
            "gate",
            "would-deny",
            "policy name",
            "\"protocol\":\"tcp\",\"remote\":\"192.0.2.1:443\",\"name\":\"b.example\",",
        ),
        refused.clone(),
        "{\"seq\":9,\"time\":\"2026-11-21T18:42:32.000312Z\",\"lost\":5}\n".to_owned(),
    ];
    let questions = [
        ("question Evil.example", 12, Some("evil.example")),
        ("question ads.example", 12, None),
        ("tcp b.example:443", 12, None),
    ];
    let rows = |summary: &Summary| -> Vec<(String, u64, Option<String>)> {
        summary.refused.iter().map(|row| (row.what.clone(), row.count, row.allow.clone())).collect()
    };
    let wanted = |last: (&str, u64, Option<&str>)| -> Vec<(String, u64, Option<String>)> {
        let all = questions.into_iter().chain([last]);
        all.map(|(what, count, allow)| (what.to_owned(), count, allow.map(str::to_owned))).collect()
    };
    let alone = summed(&audit);
    assert_eq!(rows(&alone), wanted(("tcp 192.0.2.9:22", 12, Some("tcp://192.0.2.9:22"))));
    assert_eq!((alone.lost, alone.unreadable), (5, 0));
    assert!(alone.timeline().from.is_some());
    let named = "\"protocol\":\"tcp\",\"remote\":\"192.0.2.9:22\",\"pinned\":[\"git.example\"],";
    let named = summed(&[decision("open", "deny", "policy default", named)]);
    assert_eq!(named.refused[0].allow.as_deref(), Some("tcp://git.example:22"));
    // With a flow log, before or behind.
    let flow = denied("", "192.0.2.9:22", "policy default");
    let behind = summed(&[&audit[..], std::slice::from_ref(&flow)].concat());
    assert_eq!(rows(&behind), wanted(("tcp 192.0.2.9:22", 1, Some("tcp://192.0.2.9:22"))));
    let before = summed(&[&[flow], &audit[..]].concat());
    assert_eq!(before.refused.iter().map(|row| row.count).sum::<u64>(), 37);
}

#[test]
fn the_end_of_an_open_flow_by_the_policy_is_a_refusal_of_the_audit_log() {
    let remote = "\"protocol\":\"tcp\",\"remote\":\"192.0.2.9:22\",";
    let ended = decision("end", "deny", "policy quota", remote);
    let flow = line("", "192.0.2.9:22", "quota", "\"id\":\"0:1.1\",\"rule\":\"policy quota\",");
    for lines in [vec![ended.clone()], vec![flow.clone(), ended.clone()], vec![ended.clone(), flow.clone()]] {
        let summary = summed(&lines);
        let rows: Vec<_> = summary.refused.iter().map(|row| (row.what.as_str(), row.count)).collect();
        assert_eq!(rows, [("tcp 192.0.2.9:22", 12)], "{lines:?}");
    }
}

#[test]
fn an_empty_log_makes_a_page() {
    let text = page::text(&Summary::default(), &["x".to_owned()]);
    assert!(text.contains("\"from\":null"), "{text}");
}

#[test]
fn hostile_names_stay_text_and_the_page_refers_to_nothing() {
    let hostile = "</script><script>alert(1)</script><img src=http://evil.example/x>{{SCRIPT}}<!--";
    let summary = summed(&[opened(hostile, "192.0.2.1:443"), denied(hostile, "192.0.2.1:80", hostile)]);
    let text = page::text(&summary, &[hostile.to_owned()]);
    let empty = page::text(&Summary::default(), &[]);
    for mark in ["<script", "</script", "<img", "<!--", "\"use strict\""] {
        assert_eq!(text.matches(mark).count(), empty.matches(mark).count(), "{mark}");
    }
    assert!(text.contains("\\u003c/script>"), "the name is there, as data");
    // Nothing is loaded: no address in any attribute or style, and a policy that forbids it.
    for reference in ["src=", "href=", "url(", "@import", "https://", "fetch(", "XMLHttpRequest", "innerHTML"]
    {
        assert!(!empty.contains(reference), "{reference}");
    }
    // The name of a namespace is none that is loaded.
    assert_eq!(empty.matches("http://").count(), empty.matches("http://www.w3.org/2000/svg").count());
    assert!(empty.contains("default-src 'none'"));
}

#[test]
fn destinations_are_bounded() {
    let mut summary = Summary::default();
    for n in 0..100_010u32 {
        let remote = std::net::Ipv4Addr::from(0x0a00_0000 + n);
        summary.add(opened("", &format!("{remote}:443")).as_bytes());
    }
    assert_eq!((summary.reached.len(), summary.omitted), (100_000, 10));
    let gate = "\"id\":\"0:1.1\",\"rule\":\"policy name\",";
    summary.add(line("b.example", "192.0.2.3:443", "denied", gate).as_bytes());
    assert_eq!(summary.refused.len(), 1, "beyond the bound too");
    let timeline = summary.timeline();
    assert_eq!(timeline.lanes.len(), 16);
    assert_eq!(timeline.stopped.iter().sum::<u64>(), 1, "a flow beyond the bound is no refusal");
    let sent: f64 = timeline.out.iter().sum();
    assert!((sent - 500.0 * 100_011.0).abs() < 1.0, "{sent}");
}

#[test]
fn the_page_replaces_no_file_but_a_page() {
    let folder = std::env::temp_dir().join(format!("brodo-report-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = |name: &str, text: &str| -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    let logs = [file("f.jsonl", "{}\n"), file("page-as-log.html", "<!DOCTYPE html>\n")];
    let hard = folder.join("hard");
    std::fs::hard_link(&logs[0], &hard).expect("a second name");
    let soft = folder.join("soft");
    std::os::unix::fs::symlink(&logs[0], &soft).expect("a link");
    for log in [&logs[0], &logs[1], &hard, &soft] {
        let failure = check_output(log, &logs).expect_err("a log");
        assert_eq!(failure.exit_status(), 2);
        assert_eq!(failure.to_string(), format!("-o {} is one of the logs", log.display()));
    }
    let other = check_output(&file("other.jsonl", "{\"time\":\"x\"}\n"), &logs).expect_err("another log");
    assert!(other.to_string().contains("no page of HTML"), "{other}");
    let page = page::text(&Summary::default(), &[]);
    for (name, text) in [("a.html", page.as_str()), ("b.html", "<!DocType HTML><p>"), ("empty", "")] {
        check_output(&file(name, text), &logs).unwrap_or_else(|failure| panic!("{name}: {failure}"));
    }
    for path in [folder.join("new.html"), folder.join("none/new.html"), "/dev/null".into()] {
        check_output(&path, &logs).unwrap_or_else(|failure| panic!("{}: {failure}", path.display()));
    }
    std::fs::remove_dir_all(&folder).expect("it is there");
}
