// Every metric of wsync's processes. This is the contract with dashboards and alert rules. Labels
// have few values: replicas of this host, stages, results and error codes.
#pragma once

#include "shared/observe/metrics/definition.h"

namespace wsync::metrics {

// ---- every process ----

inline constexpr Definition kBuildInfo{
    .name = "wsync_build_info",
    .kind = Kind::kGauge,
    .help = "1, with the release of this program and its role in the fleet",
    .labels = {"version", "role"}};
inline constexpr Definition kUpdateStageSeconds{
    .name = "wsync_update_stage_seconds",
    .kind = Kind::kHistogram,
    .help =
        "Duration of each stage of an update: snapshot, announce, stage and switch of the fleet "
        "(coordinator); stage of this host, pause, load and commit of each replica (sidecar)",
    .labels = {"stage"}};
inline constexpr Definition kUpdateBytes{
    .name = "wsync_update_bytes_total",
    .kind = Kind::kCounter,
    .help =
        "Bytes of weights that went through a stage: snapshot (coordinator), stage and load "
        "(sidecar), and bytes of the patches that were made (sidecar)",
    .labels = {"stage"}};
inline constexpr Definition kFailures{
    .name = "wsync_failures_total",
    .kind = Kind::kCounter,
    .help =
        "Failures by error code: failed publishes (coordinator), failed stagings and copies and "
        "lost connections (sidecar)",
    .labels = {"reason"}};
inline constexpr Definition kTargetEpoch{
    .name = "wsync_target_version_epoch",
    .kind = Kind::kGauge,
    .help = "Epoch of the version that was decided on last, 0 before the first"};
inline constexpr Definition kTargetStep{
    .name = "wsync_target_version_step",
    .kind = Kind::kGauge,
    .help = "Step of the version that was decided on last, 0 before the first"};
inline constexpr Definition kFenceEpoch{
    .name = "wsync_fence_epoch",
    .kind = Kind::kGauge,
    .help = "Epoch of the highest fence that was seen; it grows with each new coordinator"};
inline constexpr Definition kArenaBytes{
    .name = "wsync_arena_bytes",
    .kind = Kind::kGauge,
    .help =
        "Host memory in arenas of weights and of the changes that are held in place of versions: "
        "snapshots (coordinator), and arenas with a held or arriving version or kept for the next "
        "version (sidecar)"};
inline constexpr Definition kDroppedMessages{.name = "wsync_dropped_messages_total",
                                             .kind = Kind::kCounter,
                                             .help =
                                                 "Messages that were dropped because they were "
                                                 "late, of another round or under a lower fence"};
inline constexpr Definition kKeyRefusals{
    .name = "wsync_key_refusals_total",
    .kind = Kind::kCounter,
    .help =
        "Connections without a key that is listed, and messages beyond the role of their key, that "
        "a coordinator with keys has refused"};
inline constexpr Definition kPageRefusals{
    .name = "wsync_page_refusals_total",
    .kind = Kind::kCounter,
    .help = "HTTP requests that were refused because they did not show the token (http.token)"};
inline constexpr Definition kDataRefusals{
    .name = "wsync_data_refusals_total",
    .kind = Kind::kCounter,
    .help =
        "Encrypted connections for weights that were ended because the other end has no key, or "
        "another one, or because bytes were changed on the way"};
inline constexpr Definition kLoopLongest{
    .name = "wsync_loop_longest_callback_seconds",
    .kind = Kind::kGauge,
    .help =
        "Longest time that one callback blocked the loop of this process and delayed heartbeats "
        "and deadlines; time spent waiting for a processor is not included"};
inline constexpr Definition kLoopSlowCallbacks{
    .name = "wsync_loop_slow_callbacks_total",
    .kind = Kind::kCounter,
    .help =
        "Callbacks that blocked the loop of this process for 100 ms or longer; the log names each "
        "of them"};

// ---- sidecar ----

inline constexpr Definition kReplicaEpoch{
    .name = "wsync_replica_version_epoch",
    .kind = Kind::kGauge,
    .help = "Epoch of the version that every rank of the replica holds, 0 for none",
    .labels = {"replica"}};
inline constexpr Definition kReplicaStep{
    .name = "wsync_replica_version_step",
    .kind = Kind::kGauge,
    .help = "Step of the version that every rank of the replica holds, 0 for none",
    .labels = {"replica"}};
inline constexpr Definition kReplicaReady{.name = "wsync_replica_ready",
                                          .kind = Kind::kGauge,
                                          .help = "1 when requests may be routed to the replica",
                                          .labels = {"replica"}};
inline constexpr Definition kReplicaState{
    .name = "wsync_replica_state",
    .kind = Kind::kGauge,
    .help = "1 for the state that the replica is in, 0 for the others",
    .labels = {"replica", "state"}};
inline constexpr Definition kReplicaRanks{.name = "wsync_replica_ranks",
                                          .kind = Kind::kGauge,
                                          .help = "Ranks of the replica that are attached",
                                          .labels = {"replica"}};
inline constexpr Definition kReplicaRanksExpected{
    .name = "wsync_replica_ranks_expected",
    .kind = Kind::kGauge,
    .help = "Ranks that the replica has when it is complete",
    .labels = {"replica"}};
inline constexpr Definition kStaleness{.name = "wsync_staleness_seconds",
                                       .kind = Kind::kGauge,
                                       .help =
                                           "How long the replica has not served the version that "
                                           "was decided on, 0 when it serves that version",
                                       .labels = {"replica"}};
inline constexpr Definition kPausedSeconds{
    .name = "wsync_paused_seconds",
    .kind = Kind::kHistogram,
    .help =
        "How long a serving replica was paused for an update, from the pause of its last rank to "
        "its resume"};
inline constexpr Definition kSwitches{
    .name = "wsync_switches_total",
    .kind = Kind::kCounter,
    .help = "Switches of replicas to a decided version, by result",
    .labels = {"result"}};
inline constexpr Definition kLoads{
    .name = "wsync_loads_total",
    .kind = Kind::kCounter,
    .help = "Loads of a version into the memory of a rank, by kind: full, or patch",
    .labels = {"kind"}};
inline constexpr Definition kPatchFallbacks{
    .name = "wsync_patch_fallbacks_total",
    .kind = Kind::kCounter,
    .help = "Loads by a patch that failed, so that the version was loaded in full"};
inline constexpr Definition kCopiesChanged{
    .name = "wsync_copies_changed_total",
    .kind = Kind::kCounter,
    .help =
        "Versions that were held as changes alone and were made complete: in place of the version "
        "before, or beside it; lost: they could not be",
    .labels = {"how"}};
inline constexpr Definition kScrubs{
    .name = "wsync_scrubs_total",
    .kind = Kind::kCounter,
    .help =
        "Times that all weights of a replica were read again while it served, by what they "
        "were compared with its version: equal, or damaged",
    .labels = {"result"}};
inline constexpr Definition kScrubSeconds{
    .name = "wsync_scrub_cpu_seconds_total",
    .kind = Kind::kCounter,
    .help =
        "Processor time that ranks have spent on reading their weights again; where the engine "
        "is asked for its bytes, the time of the calls"};
inline constexpr Definition kStagedBytes{
    .name = "wsync_staged_bytes",
    .kind = Kind::kGauge,
    .help = "Bytes of the arriving version that this host has received and verified"};
inline constexpr Definition kCopiedBytes{
    .name = "wsync_copied_bytes_total",
    .kind = Kind::kCounter,
    .help =
        "Bytes of weights that were copied: receive (from TCP into an arena), h2d and broadcast "
        "(separate devices and GPUs, each destination by itself)",
    .labels = {"stage"}};
inline constexpr Definition kVersionsHeld{
    .name = "wsync_versions_held",
    .kind = Kind::kGauge,
    .help = "Complete and verified versions in the memory of this host"};
inline constexpr Definition kCoordinatorConnected{
    .name = "wsync_coordinator_connected",
    .kind = Kind::kGauge,
    .help = "1 while this sidecar has joined a coordinator"};

// ---- trainer whose coordinator is another process ----

inline constexpr Definition kTrainerConnected{
    .name = "wsync_trainer_connected",
    .kind = Kind::kGauge,
    .help = "1 while this trainer may publish to its coordinator, which is another process"};

// ---- coordinator ----

inline constexpr Definition kUpdates{.name = "wsync_updates_total",
                                     .kind = Kind::kCounter,
                                     .help = "Publishes that have ended, by result",
                                     .labels = {"result"}};
inline constexpr Definition kRollbacks{.name = "wsync_rollbacks_total",
                                       .kind = Kind::kCounter,
                                       .help = "Requested rollbacks, by result",
                                       .labels = {"result"}};
inline constexpr Definition kCanaryWaiting{
    .name = "wsync_canary_waiting_replicas",
    .kind = Kind::kGauge,
    .help = "Replicas that wait because only the canary serves the target"};
inline constexpr Definition kQueueDepth{.name = "wsync_queue_depth",
                                        .kind = Kind::kGauge,
                                        .help = "Publishes that wait for their snapshot to begin"};
inline constexpr Definition kPhase{
    .name = "wsync_coordinator_phase",
    .kind = Kind::kGauge,
    .help = "1 for the phase that the coordinator is in, 0 for the others",
    .labels = {"phase"}};
inline constexpr Definition kSidecars{
    .name = "wsync_fleet_sidecars", .kind = Kind::kGauge, .help = "Sidecars that have joined"};
inline constexpr Definition kReplicas{.name = "wsync_fleet_replicas",
                                      .kind = Kind::kGauge,
                                      .help = "Replicas that the joined sidecars have reported"};
inline constexpr Definition kReplicasReady{.name = "wsync_fleet_replicas_ready",
                                           .kind = Kind::kGauge,
                                           .help = "Replicas that requests may be routed to"};
inline constexpr Definition kReplicasCurrent{
    .name = "wsync_fleet_replicas_current",
    .kind = Kind::kGauge,
    .help = "Replicas that serve the version that was decided on"};
inline constexpr Definition kReplicasRequired{
    .name = "wsync_fleet_replicas_required",
    .kind = Kind::kGauge,
    .help = "Replicas that an update needs (min_replicas)"};
inline constexpr Definition kWireBytes{
    .name = "wsync_wire_bytes_total",
    .kind = Kind::kCounter,
    .help = "Bytes of weights that this process has sent over TCP"};

inline constexpr Definition kDirectoryEpoch{
    .name = "wsync_directory_version_epoch",
    .kind = Kind::kGauge,
    .help =
        "Epoch of the newest version that this trainer has written to directory.publish, 0 "
        "before the first"};
inline constexpr Definition kDirectoryStep{
    .name = "wsync_directory_version_step",
    .kind = Kind::kGauge,
    .help =
        "Step of the newest version that this trainer has written to directory.publish, 0 "
        "before the first"};
inline constexpr Definition kDirectoryBehind{
    .name = "wsync_directory_behind_versions",
    .kind = Kind::kGauge,
    .help = "Versions that were decided after the newest one in directory.publish"};
inline constexpr Definition kDirectoryFailures{
    .name = "wsync_directory_failures_total",
    .kind = Kind::kCounter,
    .help = "Versions that could not be written to directory.publish"};

// ---- standard process metrics of Prometheus client libraries ----

inline constexpr Definition kResidentMemory{.name = "process_resident_memory_bytes",
                                            .kind = Kind::kGauge,
                                            .help = "Resident memory size in bytes"};
inline constexpr Definition kVirtualMemory{.name = "process_virtual_memory_bytes",
                                           .kind = Kind::kGauge,
                                           .help = "Virtual memory size in bytes"};
inline constexpr Definition kCpuSeconds{.name = "process_cpu_seconds_total",
                                        .kind = Kind::kCounter,
                                        .help = "Total user and system CPU time spent in seconds"};
inline constexpr Definition kOpenFds{
    .name = "process_open_fds", .kind = Kind::kGauge, .help = "Number of open file descriptors"};
inline constexpr Definition kMaxFds{.name = "process_max_fds",
                                    .kind = Kind::kGauge,
                                    .help = "Maximum number of open file descriptors"};
inline constexpr Definition kStartTime{
    .name = "process_start_time_seconds",
    .kind = Kind::kGauge,
    .help = "Start time of the process since unix epoch in seconds"};

// All metrics above.
inline constexpr std::array kCatalog = {&kBuildInfo,        &kUpdateStageSeconds,
                                        &kUpdateBytes,      &kFailures,
                                        &kTargetEpoch,      &kTargetStep,
                                        &kFenceEpoch,       &kArenaBytes,
                                        &kDroppedMessages,  &kKeyRefusals,
                                        &kPageRefusals,     &kDataRefusals,
                                        &kLoopLongest,      &kLoopSlowCallbacks,
                                        &kReplicaEpoch,     &kReplicaStep,
                                        &kReplicaReady,     &kReplicaState,
                                        &kReplicaRanks,     &kReplicaRanksExpected,
                                        &kStaleness,        &kPausedSeconds,
                                        &kSwitches,         &kLoads,
                                        &kPatchFallbacks,   &kCopiesChanged,
                                        &kScrubs,           &kScrubSeconds,
                                        &kStagedBytes,      &kCopiedBytes,
                                        &kVersionsHeld,     &kCoordinatorConnected,
                                        &kTrainerConnected, &kUpdates,
                                        &kRollbacks,        &kCanaryWaiting,
                                        &kQueueDepth,       &kPhase,
                                        &kSidecars,         &kReplicas,
                                        &kReplicasReady,    &kReplicasCurrent,
                                        &kReplicasRequired, &kWireBytes,
                                        &kResidentMemory,   &kVirtualMemory,
                                        &kCpuSeconds,       &kOpenFds,
                                        &kMaxFds,           &kStartTime};

}  // namespace wsync::metrics
