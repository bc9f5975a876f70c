//! Bulk flows of a guest's kernel to the host's, through a network that gives them to kernel sockets and
//! takes them back: every byte arrives once and in order, despite all that happens meanwhile.
//!
//! A program of its own, for the reason of `promotion.rs`. Each test has a guest's namespace with a TAP, the
//! agent beside it ([`bed`]), and a server on the host's loopback ([`transfer`]).

mod bed;
mod faults;
mod flows;
mod guests;
mod thaws;
mod transfer;
mod tunnels;

use brodo_testns::in_namespace_with_tun;
use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

const TESTS: [(&str, fn()); 31] = [
    ("bytes_are_exact_while_flows_are_promoted_and_taken_back", flows::toggled),
    ("bytes_are_exact_at_a_small_mtu", flows::toggled_at_a_small_mtu),
    ("bytes_are_exact_with_several_workers", flows::toggled_with_several_workers),
    ("a_promoted_flow_is_listed_and_counted", flows::listed_and_counted),
    ("a_promoted_flow_is_counted_as_by_the_kernel", flows::counted_as_by_the_kernel),
    ("flows_go_on_without_the_agent", flows::agent_killed),
    ("a_capture_takes_its_flows_back", flows::captured),
    ("a_flow_that_needs_more_memory_than_there_is_stays_with_the_kernel", flows::short_of_memory),
    ("a_freeze_takes_all_flows_back", flows::frozen),
    ("ends_of_a_promoted_flow_pass_as_they_are", flows::ends),
    ("a_reset_behind_a_fin_loses_nothing", flows::left),
    ("keep_alive_of_both_ends_finds_a_promoted_flow", flows::kept_alive),
    ("a_guest_that_deletes_the_steering_goes_on_by_its_interface", guests::steering_deleted),
    ("a_container_behind_the_guests_address_translation_is_promoted", guests::translated),
    ("a_guest_may_listen_on_the_port_of_a_promoted_flows_server", guests::listening),
    ("packet_sockets_of_the_guest_see_a_promoted_flow", guests::observed),
    ("without_nf_tables_flows_stay_with_the_stack", faults::netfilter_missing),
    ("without_steering_flows_stay_with_the_stack", faults::steering_missing),
    ("without_the_egress_hook_flows_stay_with_the_stack", faults::hook_missing),
    ("without_repair_mode_flows_stay_with_the_stack", faults::repair_refused),
    ("without_the_state_of_a_connection_flows_stay_with_the_stack", faults::seed_refused),
    ("without_pipes_of_the_process_flows_stay_with_the_stack", faults::no_pipe_of_the_process),
    ("without_pipes_of_the_system_flows_stay_with_the_stack", faults::no_pipe_of_the_system),
    ("without_copies_of_sockets_flows_stay_with_the_stack", faults::no_copy_of_a_socket),
    ("without_room_for_requests_flows_stay_with_the_stack", faults::no_room_in_the_channel),
    ("without_memory_for_requests_flows_stay_with_the_stack", faults::no_memory_in_the_channel),
    ("a_flow_whose_return_cannot_be_asked_for_is_asked_for_again", faults::freeze_not_sent),
    ("a_flow_that_cannot_be_frozen_goes_on_with_the_kernel", faults::freeze_refused),
    ("a_flow_whose_thaw_cannot_be_asked_for_is_thawed_later", thaws::not_sent),
    ("a_tunnel_of_datagrams_in_the_guest_passes_beside_promoted_flows", tunnels::of_datagrams),
    ("a_tunnel_over_a_promoted_flow_passes_its_connections", tunnels::over_a_stream),
];

fn main() -> ExitCode {
    let trial = |(name, test): (&'static str, fn())| {
        Trial::test(name, move || {
            in_namespace_with_tun(name, test);
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), TESTS.into_iter().map(trial).collect()).exit_code()
}
