// What `wsync doctor` says of patches and scrubs, by configuration.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deploy/cli/commands.h"
#include "deploy/cli/doctor_checks.h"
#include "inference_side/sidecar/patch_shelf.h"
#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/trainer_config.h"
#include "tests/support/run_command.h"

namespace wsync::cli {
namespace {

config::SidecarConfig sidecar_with(const std::vector<std::string>& set) {
  auto loaded = config::load_sidecar({.file = {}, .environment = {}, .set = set});
  EXPECT_TRUE(loaded.has_value()) << loaded.error().message();
  return loaded.value_or(config::SidecarConfig{});
}

// The share of a model that `wsync plan` counts for patches.
double planned(double max_share, bool copies) {
  constexpr std::uint64_t kModel = 1'000'000'000;
  return static_cast<double>(agent::PatchShelf::bytes_max(kModel, max_share, copies)) / kModel;
}

bool says(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

TEST(DoctorPatches, AreOnByDefaultAndNeedWhatPlanCounts) {
  const Check check = check_patches(sidecar_with({}));
  EXPECT_EQ(check.status, CheckStatus::kOk);
  EXPECT_EQ(check.advice, "");
  EXPECT_TRUE(says(check.found, "patch.mode: changes, patch.transfer: auto")) << check.found;
  const double mapped = planned(config::PatchConfig().max_share, false);
  const double copied = planned(config::PatchConfig().max_share, true);
  EXPECT_TRUE(says(check.found, fmt::format("{:.3g} % of the model with memfd, {:.3g} % of the "
                                            "model where versions are copied",
                                            100 * mapped, 100 * copied)))
      << check.found;
  EXPECT_EQ(check.facts.at("used"), true);
  EXPECT_NEAR(check.facts.at("memory_share_mapped").get<double>(), mapped, 1e-6);
  EXPECT_NEAR(check.facts.at("memory_share_copied").get<double>(), copied, 1e-6);
}

TEST(DoctorPatches, NeedLessWithASmallerShareAndOneKindOfTransport) {
  const Check tcp =
      check_patches(sidecar_with({"transport=tcp", "patch.max_share=0.01", "host_memory=1GiB"}));
  EXPECT_EQ(tcp.facts.at("memory_share_mapped"), 0);
  EXPECT_NEAR(tcp.facts.at("memory_share_copied").get<double>(), planned(0.01, true), 1e-6);
  EXPECT_TRUE(says(tcp.found,
                   "at most 3 % of the model where versions are copied, within "
                   "host_memory (1GiB)"))
      << tcp.found;
  EXPECT_TRUE(says(tcp.found, "held as these, at most 1 % of the model, in place of an arena"))
      << tcp.found;
  EXPECT_TRUE(says(tcp.found, "keeps for sidecars that are behind have at most 7 % of the model"))
      << tcp.found;
  const Check arenas = check_patches(sidecar_with({"transport=tcp", "patch.in_place=off"}));
  EXPECT_TRUE(says(arenas.found, "every version that is copied has an arena")) << arenas.found;
  EXPECT_EQ(arenas.facts.at("in_place"), "off");
  const Check memfd = check_patches(sidecar_with({"transport=memfd"}));
  EXPECT_TRUE(says(memfd.found,
                   "can be changed (patch.in_place: auto), and both have one between them, unless"))
      << memfd.found;
  EXPECT_TRUE(says(check_patches(sidecar_with({"transport=memfd", "patch.in_place=off"})).found,
                   "needs an arena for each version (patch.in_place: off)"));
  EXPECT_EQ(memfd.facts.at("memory_share_copied"), 0);
  EXPECT_FALSE(says(memfd.found, "copied")) << memfd.found;
  EXPECT_FALSE(says(memfd.found, "behind")) << memfd.found;
}

TEST(DoctorPatches, AWarningNamesTheSettingThatDefeatsThemAndTheRemedy) {
  struct Case {
    std::vector<std::string> set;
    std::string found;
    std::string advice;
  };
  for (const Case& each : std::vector<Case>{
           {{"patch.mode=off"}, "patch.mode is off", "set patch.mode to changes"},
           {{"scrub.interval=0"}, "scrub.interval is 0", "set scrub.interval to a time"},
           {{"patch.transfer=off"}, "patch.transfer is off", "set patch.transfer to auto"},
           {{"patch.mode=off", "scrub.interval=0"}, "patch.mode is off", "set patch.mode"}}) {
    const Check check = check_patches(sidecar_with(each.set));
    EXPECT_EQ(check.status, CheckStatus::kWarn) << check.found;
    EXPECT_TRUE(says(check.found, each.found)) << check.found;
    EXPECT_TRUE(says(check.found, "until all bytes are loaded")) << check.found;
    EXPECT_TRUE(says(check.advice, each.advice)) << check.advice;
    EXPECT_EQ(check.facts.at("used"), false);
    EXPECT_EQ(check.facts.at("memory_share_mapped"), 0);
    EXPECT_EQ(check.facts.at("memory_share_copied"), 0);
  }
  // Versions are compared here, so nothing has to come with them.
  EXPECT_EQ(check_patches(sidecar_with({"patch.transfer=off", "patch.mode=auto"})).status,
            CheckStatus::kOk);
}

TEST(DoctorPatches, EnginesOnGpusAreLoadedInFullNowAndThen) {
  config::SidecarConfig config = sidecar_with({"scrub.interval=10m"});
  EXPECT_FALSE(says(check_patches(config).found, "GPU"));
  config.devices.kind = DeviceKind::kCuda;
  EXPECT_TRUE(says(check_patches(config).found,
                   "loaded again when the last load of all bytes is "
                   "10m ago"))
      << check_patches(config).found;
}

TEST(DoctorPatches, ATrainerMakesThemForSidecarsThatMapItsArenas) {
  const Check made = check_trainer_patches({});
  EXPECT_EQ(made.status, CheckStatus::kOk);
  EXPECT_EQ(made.facts.at("used"), true);
  EXPECT_NEAR(made.facts.at("memory_share_mapped").get<double>(),
              planned(config::PatchConfig().max_share, false), 1e-6);
  config::TrainerConfig config;
  config.network.transport = "tcp";
  config.in_place = config::PatchMode::kOff;
  EXPECT_TRUE(says(made.found, "at most 7 % change needs no arena of its own")) << made.found;
  const Check none = check_trainer_patches(config);
  EXPECT_TRUE(says(none.found, "an arena of its own (patch.in_place: off)")) << none.found;
  EXPECT_EQ(none.facts.at("in_place"), "off");
  EXPECT_EQ(none.status, CheckStatus::kOk);
  EXPECT_EQ(none.facts.at("used"), false);
  EXPECT_TRUE(says(none.found, "transport is tcp")) << none.found;
}

TEST(DoctorPatches, ATrainerNamesTheSettingThatGivesEveryVersionAnArena) {
  const auto found = [](const auto& set) {
    config::TrainerConfig config;
    set(config);
    return check_trainer_patches(config).found;
  };
  EXPECT_TRUE(says(found([](auto& c) { c.directory.publish = "/models"; }),
                   "an arena of its own (directory.publish)"));
  EXPECT_TRUE(says(found([](auto& c) { c.canary = "r0"; }), "an arena of its own (canary: r0)"));
  EXPECT_TRUE(says(found([](auto& c) { c.bucket_bytes = 2048 * limits::kMiB; }),
                   "an arena of its own (bucket_bytes: 2GiB, more than 1GiB)"));
}

TEST(DoctorScrub, SaysTheIntervalOrWarns) {
  const Check on = check_scrub(sidecar_with({"scrub.interval=45m", "scrub.max_share=0.02"}));
  EXPECT_EQ(on.status, CheckStatus::kOk);
  EXPECT_TRUE(says(on.found, "every 45m (scrub.interval), for at most 2 %")) << on.found;
  EXPECT_EQ(on.facts.at("interval_ms"), 2'700'000);
  const Check off = check_scrub(sidecar_with({"scrub.interval=0"}));
  EXPECT_EQ(off.status, CheckStatus::kWarn);
  EXPECT_TRUE(says(off.advice, "scrub.interval")) << off.advice;
}

TEST(DoctorPatches, TheCommandShowsThemForBothRoles) {
  for (const std::string role : {"sidecar", "trainer"}) {
    const auto run = test::run_command(service_program(), {"doctor", "--json", "--role", role});
    const auto result = nlohmann::json::parse(run.out).at("result");
    std::vector<std::string> names;
    for (const auto& check : result.at("checks"))
      if (check.at("name") == "patches" || check.at("name") == "scrub")
        names.push_back(check.at("name"));
    EXPECT_EQ(names, role == "trainer" ? std::vector<std::string>{"patches"}
                                       : (std::vector<std::string>{"patches", "scrub"}));
  }
  const auto off = test::run_command(service_program(), {"doctor", "--set", "patch.mode=off"});
  EXPECT_TRUE(says(off.out, "warn  patches        patch.mode is off")) << off.out;
}

}  // namespace
}  // namespace wsync::cli
