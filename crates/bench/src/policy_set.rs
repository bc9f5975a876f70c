//! A change of policy with many connections open: the time until the new rules are in force, and the time
//! until all connections that they refuse have ended.
//!
//! One brodo, one guest, a policy about the server by its name. A probe opens connections to a port that the
//! first policy allows and the second does not; the second one is set over the control socket, as
//! `brodo policy set` does. The times are from the request to the reply, which names the new generation, and
//! to the last end that the guest's program has noticed. A hundred connections to a port that both policies
//! allow are open meanwhile, and prove at the end, by bytes that are echoed, that none of them has ended.
//!
//! As *bare* stands the time in which a program resets as many connections of its own in the host's
//! namespace, and nothing more: one of the two sides that brodo ends.
//!
//! It fails if a connection that is refused does not end, or one that is allowed does. Of times the report
//! says whether they keep the bound.

use crate::idle::LIMIT;
use crate::probe::clock;
use crate::process::{Context, Failure, Job, Result, wait_until};
use crate::report::{Block, Document, Machine, Outputs, Spread, Table};
use crate::system::{Guest, Programs, SERVER_NAME, SERVER_PORT, System};
use crate::world::{HOST_V4, World};
use brodo_control::client::Client;
use brodo_control::policy::{PolicyText, SetPolicy, ShowPolicy};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Display;
use std::thread;
use std::time::Duration;

/// Port of the connections that the second policy refuses.
const REFUSED_PORT: u16 = SERVER_PORT + 1;
/// Number of connections that both policies allow.
const KEPT: &str = "100";
/// Time between the last connection's opening and the change.
const SETTLE: Duration = Duration::from_millis(200);
/// Most milliseconds until connections have ended that a new policy refuses.
const ENDED_MAX_MS: f64 = 100.0;

/// Options of `brodo-bench policy-set`.
#[derive(Debug, Args)]
pub struct Options {
    /// Numbers of connections that the change ends
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1000,10000",
        value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub connections: Vec<u32>,
    /// Changes with each number of connections
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Paths of the programs.
    #[command(flatten)]
    pub programs: Programs,
    /// Outputs of the results.
    #[command(flatten)]
    pub outputs: Outputs,
}

/// Times of one change, in milliseconds from the request.
#[derive(Debug, Clone, Copy)]
struct PolicyChangeTimes {
    answered: f64,
    first_end: f64,
    last_end: f64,
    /// Of the same number of connections that a program resets; not from the request.
    bare: f64,
}

impl PolicyChangeTimes {
    /// From the times of request and reply, and what the probes have printed.
    fn new(asked: Duration, replied: Duration, ends: &Value, bare: &Value) -> Option<Self> {
        let after = |time: Duration| (time.as_secs_f64() - asked.as_secs_f64()) * 1e3;
        let end = |name: &str| ends[name].as_u64().map(Duration::from_nanos).map(after);
        let bare = bare["ns"].as_u64()? as f64 / 1e6;
        Some(Self { answered: after(replied), first_end: end("first_ns")?, last_end: end("last_ns")?, bare })
    }
}

/// Changes with one number of connections open.
#[derive(Debug)]
struct PolicyChanges {
    connections: u32,
    times: Vec<PolicyChangeTimes>,
}

/// `brodo-bench policy-set`.
pub fn run(options: &Options) -> Result<()> {
    let machine = Machine::now();
    eprintln!("{}", machine.text());
    let found = measure(options)?;
    let machine = machine.at_end();
    let mut document = Document::new("A change of policy with connections open");
    document.blocks.extend(machine.blocks().chain([Block::Table(table(&found))]));
    let samples = json!({ "machine": machine.json(), "changes": found.iter().map(json).collect::<Value>() });
    options.outputs.write(&document, &document, &samples)
}

fn table(found: &[PolicyChanges]) -> Table {
    let caption = "ms from the request, medians, minimum and maximum in parentheses";
    let head = ["connections", "in force", "first has ended", "all have ended", "bare", "goal", "reached"];
    let mut table = Table::new(caption, head);
    for PolicyChanges { connections, times } in found {
        let spread = |of: fn(&PolicyChangeTimes) -> f64| Spread::of(times.iter().map(of));
        let spreads = [
            spread(|it| it.answered),
            spread(|it| it.first_end),
            spread(|it| it.last_end),
            spread(|it| it.bare),
        ];
        let spreads = spreads.map(|spread| spread.map_or_else(String::new, Spread::text));
        let late = times.iter().filter(|it| it.last_end > ENDED_MAX_MS).count();
        let reached = match late {
            0 => "yes".to_owned(),
            late if late == times.len() => "no".to_owned(),
            late => format!("{} of {}", times.len() - late, times.len()),
        };
        let goal = format!("≤ {ENDED_MAX_MS} ms");
        table.row([connections.to_string()].into_iter().chain(spreads).chain([goal, reached]));
    }
    table
}

fn json(changes: &PolicyChanges) -> Value {
    let times = changes.times.iter();
    let times = times.map(|it| json!([it.answered, it.first_end, it.last_end, it.bare])).collect::<Value>();
    json!({ "connections": changes.connections, "answered_ms, first_end_ms, last_end_ms, bare_ms": times })
}

/// A policy that allows the server by its name at these ports, with its name in messages.
fn policy(name: &str, ports: impl Display) -> PolicyText {
    let rule = format!("tcp://{SERVER_NAME}:{ports}");
    let text = format!("version = 1\n[[rule]]\nto = [\"{rule}\"]\nprivate = true\n");
    PolicyText { path: format!("{name}.toml"), text }
}

fn wide() -> PolicyText {
    policy("wide", format_args!("{SERVER_PORT}-{REFUSED_PORT}"))
}

fn narrow() -> PolicyText {
    policy("narrow", SERVER_PORT)
}

fn measure(options: &Options) -> Result<Vec<PolicyChanges>> {
    let world = World::new()?;
    world.serve_probe(&world.host, SERVER_PORT)?;
    let file = world.folder().join("wide.toml");
    std::fs::write(&file, wide().text).map_err(|error| Failure(format!("{}: {error}", file.display())))?;
    let path = world.home().join("control");
    let program = world.install_program(&options.programs.find(System::Brodo)?)?;
    let [program, file, socket] = [&program, &file, &path].map(|path| path.to_string_lossy());
    let host_name = format!("{SERVER_NAME}={HOST_V4}");
    let mut words =
        vec![&*program, "run", "--policy", &file, "--host-name", &host_name, "--control", &socket];
    words.extend(options.programs.options());
    words.push("--");
    let guest = Guest::forwarder(&world, &world.enter_host_as_user(), &words)?;
    let mut client = Client::connect(&path).context(control)?;
    let mut kept = start(&world, &guest, &["many", HOST_V4, &SERVER_PORT.to_string(), KEPT, "--silent"])?;
    wait_for_open(&mut kept, Job::stderr)?;
    let empty = |connections: &u32| PolicyChanges { connections: *connections, times: Vec::new() };
    let mut found: Vec<_> = options.connections.iter().map(empty).collect();
    for round in 1..=options.rounds {
        for changes in &mut found {
            let times = change(&world, &guest, &mut client, changes.connections)?;
            eprintln!("round {round}, {} connections: {times:?}", changes.connections);
            changes.times.push(times);
        }
    }
    kept.close_stdin();
    let echoed = kept.wait(LIMIT)?.success()?.json()?;
    if echoed["equal"] != true {
        return Err(Failure(format!(
            "of the connections that every policy allows not all are alive: {echoed}"
        )));
    }
    guest.verify()?;
    Ok(found)
}

/// Opens connections under the wide policy, and ends them by the narrow one.
fn change(world: &World, guest: &Guest, client: &mut Client, count: u32) -> Result<PolicyChangeTimes> {
    let generation = client.call(&ShowPolicy {}).context(control)?.generation;
    let wide = SetPolicy { files: vec![wide()], expect: Some(generation) };
    let generation = client.call(&wide).context(control)?.generation;
    let [probe, name] = world.probe();
    let (port, count) = (REFUSED_PORT.to_string(), count.to_string());
    // A server for each change: the ends of its connections are none of the next one's.
    let _server =
        world.start_server(&world.host.enter(), [&*probe, &*name, "accept", &*port], REFUSED_PORT)?;
    let mut job = start(world, guest, &["ends", HOST_V4, &port, &count])?;
    wait_for_open(&mut job, Job::stdout)?;
    thread::sleep(SETTLE);
    let narrow = SetPolicy { files: vec![narrow()], expect: Some(generation) };
    let asked = clock();
    let policy = client.call(&narrow).context(control)?;
    let replied = clock();
    if policy.generation != generation + 1 {
        let why = format!("generation {} follows {generation}", policy.generation);
        return Err(Failure(why));
    }
    let ended = job.wait(LIMIT)?.success()?;
    let ends: Value =
        serde_json::from_str(ended.stdout.lines().last().unwrap_or_default()).unwrap_or_default();
    if ends["ended"] != ends["reset"] {
        return Err(ended.failure("connections have ended without a reset"));
    }
    let resets = [&*probe, &*name, "resets", HOST_V4, &*port, &*count];
    let bare = world.run(&world.host.enter(), resets, LIMIT)?.success()?.json()?;
    PolicyChangeTimes::new(asked, replied, &ends, &bare).ok_or_else(|| ended.failure("no times"))
}

/// The failed part, in front of the reason.
fn control() -> String {
    "the control socket".into()
}

/// Starts a probe in the guest.
fn start(world: &World, guest: &Guest, words: &[&str]) -> Result<Job> {
    let [probe, name] = world.probe();
    world.start(&guest.enter, [probe.as_str(), &name].into_iter().chain(words.iter().copied()))
}

/// Waits until a probe says that its connections are open.
fn wait_for_open(job: &mut Job, of: fn(&Job) -> String) -> Result<()> {
    let open = wait_until(LIMIT, || (of(job).contains("open") || !job.is_running()).then_some(()));
    if open.is_some() && job.is_running() {
        return Ok(());
    }
    Err(Failure(format!("connections were not opened: {}", job.describe())))
}

#[cfg(test)]
mod tests {
    //! The two policies as brodo judges by them, times, and the goal.

    use super::*;
    use brodo_core::policy::{AllowRule, Effect, PolicyRules, Rule, Ruleset, Scheme};

    fn compiled(policy: &PolicyText) -> Ruleset {
        let rule = policy.text.split('"').nth(1).expect("a rule");
        let allow = vec![AllowRule::from(Rule::parse(rule, Effect::Allow).expect("well-formed"))];
        Ruleset::new(PolicyRules { allow, ..PolicyRules::default() }).expect("not too many")
    }

    #[test]
    fn the_narrow_policy_refuses_what_the_wide_one_allows() {
        let of = |policy: &PolicyText| {
            let rules = compiled(policy);
            let tried = |port| rules.try_name(Scheme::Tcp, SERVER_NAME, port).map(|tried| tried.effect);
            [SERVER_PORT, REFUSED_PORT].map(tried)
        };
        assert_eq!(of(&wide()), [Some(Effect::Allow); 2]);
        assert_eq!(of(&narrow()), [Some(Effect::Allow), Some(Effect::Deny)]);
    }

    #[test]
    fn times_are_milliseconds_from_the_request() {
        let asked = Duration::from_secs(1000);
        let ms = |ms: u64| asked + Duration::from_millis(ms);
        let ends = json!({ "first_ns": ms(2).as_nanos() as u64, "last_ns": ms(40).as_nanos() as u64 });
        let times =
            PolicyChangeTimes::new(asked, ms(50), &ends, &json!({ "ns": 7_000_000 })).expect("all times");
        let rounded =
            [times.answered, times.first_end, times.last_end, times.bare].map(|ms| ms.round() as u32);
        assert_eq!(rounded, [50, 2, 40, 7]);
        assert!(PolicyChangeTimes::new(asked, ms(50), &ends, &json!({})).is_none());
    }

    #[test]
    fn a_late_end_misses_the_goal() {
        let changes = |last: &[f64]| {
            let of = |last_end: &f64| PolicyChangeTimes {
                answered: 1.0,
                first_end: 2.0,
                last_end: *last_end,
                bare: 3.0,
            };
            PolicyChanges { connections: 7, times: last.iter().map(of).collect() }
        };
        let all = [[90.0, 100.0], [90.0, 100.5], [101.0, 110.0]].map(|last| changes(&last));
        let rows = table(&all).rows;
        assert!(
            rows.iter().all(|row| row[0] == "7" && row[4] == "3 (3–3)" && row[5] == "≤ 100 ms"),
            "{rows:?}"
        );
        let reached: Vec<_> = rows.iter().map(|row| row[6].as_str()).collect();
        assert_eq!(reached, ["yes", "1 of 2", "no"]);
    }
}
