// Runs the simulated fleet with many seeds.
//   WSYNC_SIM_SEED=N   the first seed (default 1)
//   WSYNC_SIM_RUNS=N   the number of seeds (default 2000)
//   WSYNC_SIM_TRACE=1  prints the messages between coordinators and sidecars
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <gtest/gtest.h>
#include <random>
#include <string>

#include "tests/simulation/world.h"

namespace wsync::simulation {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

volatile std::sig_atomic_t current_seed = 0;

// A machine aborts if its own invariant fails. Prints the seed before the process ends.
void on_abort(int /*signal*/) {
  char text[64];
  const int n =
      std::snprintf(text, sizeof text, "WSYNC_SIM_SEED=%ld\n", static_cast<long>(current_seed));
  if (n > 0) [[maybe_unused]]
    const auto written = std::fwrite(text, 1, static_cast<std::size_t>(n), stderr);
  std::signal(SIGABRT, SIG_DFL);  // ends the process even if the signal came from outside
  std::raise(SIGABRT);
}

WorldStatistics run_seed(const WorldOptions& options) {
  current_seed = static_cast<std::sig_atomic_t>(options.seed);
  World world(options);
  if (!world.run())
    for (const std::string& violation : world.violations())
      ADD_FAILURE() << violation << "\n  again: WSYNC_SIM_SEED=" << options.seed
                    << " WSYNC_SIM_RUNS=1";
  if (std::getenv("WSYNC_SIM_REASONS") != nullptr)
    for (const auto& [reason, count] : world.statistics().reasons)
      std::printf("%6llu %s\n", static_cast<unsigned long long>(count), reason.c_str());
  return world.statistics();
}

// The greater part of the worlds is small, because small ones find most and are quick.
WorldOptions options_of(std::uint64_t seed) {
  WorldOptions options{.seed = seed};
  options.sidecars = static_cast<std::uint32_t>(1 + seed % 3);
  options.replicas = static_cast<std::uint32_t>(1 + seed / 3 % 2);
  options.ranks = static_cast<std::uint32_t>(1 + seed / 5 % 3);
  options.devices = static_cast<HubDevices>(seed / 7 % 3);
  std::mt19937_64 random(seed);
  const auto one_in = [&random](std::uint64_t n) { return random() % n == 0; };
  options.changing = one_in(6);
  options.twins = one_in(6);
  options.holders = one_in(4);
  options.adopts = options.devices == HubDevices::kUnified && one_in(2);
  if (options.changing) options.late = static_cast<std::uint32_t>(random() % 3);
  if (one_in(20)) {
    const auto all = static_cast<std::uint32_t>(3 + random() % 10);
    options.changing = true;
    options.late = static_cast<std::uint32_t>(random() % (all - 2));
    options.sidecars = all - options.late;
    options.replicas = 1;
    options.ranks = std::min(options.ranks, 2U);
  }
  return options;
}

TEST(Simulation, NothingIsViolatedAndTheFleetComesToItsTarget) {
  std::signal(SIGABRT, on_abort);
  const std::uint64_t first = from_environment("WSYNC_SIM_SEED", 1);
  const std::uint64_t runs = from_environment("WSYNC_SIM_RUNS", 2000);
  const auto begin = std::chrono::steady_clock::now();
  WorldStatistics total;
  std::uint64_t seed = first;
  for (;; ++seed) {
    if (runs != 0 && seed == first + runs) break;
    // The time budget limits only how many seeds run. At least 20 run in any case.
    if (runs == 0 && seed >= first + 20 &&
        std::chrono::steady_clock::now() - begin > std::chrono::seconds(20))
      break;
    const WorldStatistics run = run_seed(options_of(seed));
    if (HasFailure()) break;
    total.add(run);
  }
  std::printf(
      "%llu seeds: %llu events, %llu crashes, rounds %llu ok, %llu failed, %llu superseded and "
      "%llu cancelled, %llu rollbacks, %llu sidecars and %llu replicas forgotten, %llu serving "
      "steps, "
      "%llu messages dropped\n",
      static_cast<unsigned long long>(seed - first), static_cast<unsigned long long>(total.events),
      static_cast<unsigned long long>(total.crashes),
      static_cast<unsigned long long>(total.rounds_ok),
      static_cast<unsigned long long>(total.rounds_failed),
      static_cast<unsigned long long>(total.superseded),
      static_cast<unsigned long long>(total.cancelled),
      static_cast<unsigned long long>(total.rollbacks_ok),
      static_cast<unsigned long long>(total.forgotten),
      static_cast<unsigned long long>(total.replicas_forgotten),
      static_cast<unsigned long long>(total.steps), static_cast<unsigned long long>(total.dropped));
  std::printf(
      "pipeline: %llu runs, %llu failed; %llu engines dropped; buffers allocated %llu times, freed "
      "%llu times; devices connected anew %llu times; %llu loads not begun\n",
      static_cast<unsigned long long>(total.hubs.runs),
      static_cast<unsigned long long>(total.hubs.runs_failed),
      static_cast<unsigned long long>(total.hubs.drops),
      static_cast<unsigned long long>(total.hubs.allocations),
      static_cast<unsigned long long>(total.hubs.frees),
      static_cast<unsigned long long>(total.hubs.connects),
      static_cast<unsigned long long>(total.hubs.not_begun));
  std::printf(
      "members: %llu publishes left out slow ones; %llu joined, %llu came back, %llu left; %llu "
      "stood still, %llu good rounds beside "
      "them, %llu arenas added; names %llu refused, %llu taken; %llu ranks refused; %llu disks "
      "failed for a while, %llu writes failed, %llu hung, %llu publishes ended by that; %llu "
      "greetings lost; %llu versions adopted; %llu messages to older releases\n",
      static_cast<unsigned long long>(total.left_out), static_cast<unsigned long long>(total.joins),
      static_cast<unsigned long long>(total.returns), static_cast<unsigned long long>(total.leaves),
      static_cast<unsigned long long>(total.stops),
      static_cast<unsigned long long>(total.ok_beside_stopped),
      static_cast<unsigned long long>(total.arenas_added),
      static_cast<unsigned long long>(total.names_refused),
      static_cast<unsigned long long>(total.names_taken),
      static_cast<unsigned long long>(total.ranks_refused),
      static_cast<unsigned long long>(total.disks_broken),
      static_cast<unsigned long long>(total.writes_failed),
      static_cast<unsigned long long>(total.disks_hung),
      static_cast<unsigned long long>(total.late_stores),
      static_cast<unsigned long long>(total.greetings_lost),
      static_cast<unsigned long long>(total.adopted),
      static_cast<unsigned long long>(total.to_older));
  std::printf(
      "streams: %llu rounds began with their snapshot, %llu snapshots failed, %llu rounds ended "
      "before their snapshot, %llu digests came after the bytes\n",
      static_cast<unsigned long long>(total.streamed),
      static_cast<unsigned long long>(total.stream_failures),
      static_cast<unsigned long long>(total.stream_cancels),
      static_cast<unsigned long long>(total.bytes_first));
  std::printf(
      "kept: %llu snapshots were held, %llu rounds lost every sidecar, and %llu publishes got "
      "another round after that\n",
      static_cast<unsigned long long>(total.held),
      static_cast<unsigned long long>(total.lost_rounds),
      static_cast<unsigned long long>(total.repeated));
  std::printf(
      "changes: %llu versions were staged as what changes; %llu were completed in place, %llu in "
      "other memory, and %llu bases were lost\n",
      static_cast<unsigned long long>(total.as_changes),
      static_cast<unsigned long long>(total.in_place),
      static_cast<unsigned long long>(total.beside),
      static_cast<unsigned long long>(total.bases_lost));
  std::printf(
      "copies: %llu held versions were passed on to sidecars that came later; of %llu the "
      "coordinator knew nothing; %llu trainers were lost without their coordinators; %llu versions "
      "had "
      "parts\n",
      static_cast<unsigned long long>(total.relayed),
      static_cast<unsigned long long>(total.described),
      static_cast<unsigned long long>(total.trainers_lost),
      static_cast<unsigned long long>(total.parted));
  // This many seeds reach every decision about loads and buffers.
  if (runs >= 500 && !HasFailure()) {
    EXPECT_GT(total.forgotten, 0U);
    EXPECT_GT(total.replicas_forgotten, 0U);
    EXPECT_GT(total.hubs.runs_failed, 0U);
    EXPECT_GT(total.hubs.drops, 0U);
    EXPECT_GT(total.hubs.frees, 0U);
    EXPECT_GT(total.hubs.connects, 0U);
    EXPECT_GT(total.hubs.not_begun, 0U);
    EXPECT_GT(total.left_out, 0U);
    EXPECT_GT(total.joins, 0U);
    EXPECT_GT(total.returns, 0U);
    EXPECT_GT(total.leaves, 0U);
    EXPECT_GT(total.stops, 0U);
    EXPECT_GT(total.ok_beside_stopped, 0U);
    EXPECT_GT(total.arenas_added, 0U);
    EXPECT_GT(total.names_refused, 0U);
    EXPECT_GT(total.names_taken, 0U);
    EXPECT_GT(total.ranks_refused, 0U);
    EXPECT_GT(total.disks_broken, 0U);
    EXPECT_GT(total.writes_failed, 0U);
    EXPECT_GT(total.greetings_lost, 0U);
    EXPECT_GT(total.disks_hung, 0U);
    EXPECT_GT(total.adopted, 0U);
    EXPECT_GT(total.as_changes, 0U);
    EXPECT_GT(total.in_place, 0U);
    EXPECT_GT(total.beside, 0U);
    EXPECT_GT(total.bases_lost, 0U);
    EXPECT_GT(total.relayed, total.described);
    EXPECT_GT(total.described, 0U);
    EXPECT_GT(total.parted, 0U);
    EXPECT_GT(total.trainers_lost, 0U);
    EXPECT_GT(total.to_older, 0U);
    EXPECT_GT(total.streamed, 0U);
    EXPECT_GT(total.stream_failures, 0U);
    EXPECT_GT(total.stream_cancels, 0U);
    EXPECT_GT(total.bytes_first, 0U);
    EXPECT_GT(total.lost_rounds, 0U);
    EXPECT_GT(total.repeated, 0U);
    if (runs >= 2000) {
      EXPECT_GT(total.late_stores, 0U);
    }
  }
  if (runs == 0 && !HasFailure()) {
    EXPECT_GT(total.rounds_ok, 0U);
    EXPECT_GT(total.rounds_failed, 0U);
    EXPECT_GT(total.rollbacks_ok, 0U);
    EXPECT_GT(total.promotions_ok, 0U);
    EXPECT_GT(total.superseded, 0U);
    EXPECT_GT(total.held, 0U);
    EXPECT_GT(total.cancelled, 0U);
    EXPECT_GT(total.steps, 0U);
  }
}

TEST(Simulation, WithoutFaultsEveryRoundIsGood) {
  for (const HubDevices devices :
       {HubDevices::kUnified, HubDevices::kKeptBuffers, HubDevices::kFreedBuffers}) {
    WorldOptions options{.seed = 8};  // commit rule: all
    options.devices = devices;
    options.faults = false;
    options.coordinators = 1;
    const WorldStatistics run = run_seed(options);
    EXPECT_GT(run.rounds_ok, 3U);
    EXPECT_EQ(run.hubs.runs == 0, devices == HubDevices::kUnified);
    EXPECT_EQ(run.hubs.frees == 0, devices != HubDevices::kFreedBuffers);
    EXPECT_EQ(run.hubs.runs_failed, 0U);
    EXPECT_EQ(run.hubs.not_begun, 0U);
  }
}

// One sidecar and its engines stand still for good, with the leases that they have. The others are
// updated as if nothing had happened.
TEST(Simulation, AProcessThatStandsStillStopsNobody) {
  for (const std::uint64_t seed : {6U, 7U, 13U, 20U}) {  // every commit rule
    SCOPED_TRACE(seed);
    WorldOptions options{.seed = seed};
    options.coordinators = 1;
    options.faults = false;
    options.holders = true;
    options.stands_still_after = std::chrono::milliseconds(1'000);
    const WorldStatistics run = run_seed(options);
    EXPECT_EQ(run.stops, 1U);
    EXPECT_GT(run.ok_beside_stopped, 1U);
    EXPECT_GT(run.arenas_added, 0U);
  }
}

TEST(Simulation, TheSameSeedIsTheSameRun) {
  for (const HubDevices devices : {HubDevices::kUnified, HubDevices::kFreedBuffers}) {
    const WorldOptions options{.seed = 7, .devices = devices};
    const WorldStatistics once = run_seed(options);
    const WorldStatistics again = run_seed(options);
    EXPECT_EQ(once.events, again.events);
    EXPECT_EQ(once.steps, again.steps);
    EXPECT_EQ(once.dropped, again.dropped);
    EXPECT_EQ(once.hubs.runs, again.hubs.runs);
  }
}

}  // namespace
}  // namespace wsync::simulation
