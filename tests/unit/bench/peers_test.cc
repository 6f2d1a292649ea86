// The peers of `wsync bench peers`: what their processes may say, what is there of them, and how
// the figures are told.
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/harness/directory.h"
#include "bench/harness/read_result.h"
#include "bench/peers/member_line.h"
#include "bench/peers/model_source.h"
#include "bench/peers/peer_environment.h"
#include "bench/peers/peer_list.h"
#include "bench/peers/report.h"
#include "bench/peers/scripts.h"
#include "shared/base/format.h"
#include "shared/weights/checkpoint_dir.h"

namespace wsync::bench {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr std::string_view kSomeDigest = "00112233445566778899aabbccddeeff";

std::string done_line(std::string_view digest) {
  return fmt::format(R"({{"event": "done", "rank": 2, "digest": "{}"}})", digest);
}

TEST(MemberLine, EachEventIsRead) {
  const auto ready = parse_member_line(R"({"event": "ready", "rank": 0})", 3);
  ASSERT_TRUE(ready) << ready.error().message();
  EXPECT_EQ(ready->event, MemberEvent::kReady);
  EXPECT_EQ(ready->rank, 0U);
  const auto done = parse_member_line(done_line(kSomeDigest), 3);
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_EQ(done->event, MemberEvent::kDone);
  EXPECT_EQ(done->rank, 2U);
  EXPECT_EQ(done->digest.to_string(), kSomeDigest);
  const auto failed =
      parse_member_line("{\"event\": \"failed\", \"rank\": 1, \"why\": \"no\\nroom\"}", 3);
  ASSERT_TRUE(failed) << failed.error().message();
  EXPECT_EQ(failed->event, MemberEvent::kFailed);
  EXPECT_EQ(failed->why, "no?room");
}

TEST(MemberLine, WhatItWritesItReads) {
  MemberLine line{.event = MemberEvent::kDone, .rank = 1};
  line.digest = *Digest::parse(kSomeDigest);
  line.begin_ns = 12;
  line.end_ns = 34;
  const auto read = parse_member_line(member_text(line), 2);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->digest, line.digest);
  EXPECT_EQ(read->begin_ns, 12);
  EXPECT_EQ(read->end_ns, 34);
}

TEST(MemberLine, GarbageIsRefusedWithWhatWasExpected) {
  const std::vector<std::pair<std::string, std::string>> bad{
      {"", "a JSON object"},
      {"ready", "a JSON object"},
      {"[1]", "a JSON object"},
      {R"({"event": "ready"})", "\"rank\" from 0 to 2"},
      {R"({"event": "ready", "rank": 3})", "\"rank\" from 0 to 2"},
      {R"({"event": "ready", "rank": -1})", "\"rank\" from 0 to 2"},
      {R"({"event": "ready", "rank": 0.5})", "\"rank\" from 0 to 2"},
      {R"({"event": "ready", "rank": 1e300})", "\"rank\" from 0 to 2"},
      {R"({"rank": 1})", "an \"event\""},
      {R"({"event": 7, "rank": 1})", "an \"event\""},
      {R"({"event": "begun", "rank": 1})", "an \"event\""},
      {R"({"event": "done", "rank": 1})", "the \"digest\""},
      {R"({"event": "done", "rank": 1, "digest": 5})", "the \"digest\""},
      {done_line("00112233"), "32 hexadecimal digits"},
      {done_line("zz112233445566778899aabbccddeeff"), "32 hexadecimal digits"},
      {std::string(kMemberLineBytesMax + 1, ' '), "at most"},
  };
  for (const auto& [line, expected] : bad) {
    const auto read = parse_member_line(line, 3);
    ASSERT_FALSE(read) << line;
    EXPECT_EQ(read.error().code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(read.error().message(), HasSubstr(expected)) << line;
  }
  const auto control = parse_member_line("\x1b[2Jgone", 3);
  ASSERT_FALSE(control);
  EXPECT_THAT(control.error().message(), AllOf(HasSubstr("?[2Jgone"), Not(HasSubstr("\x1b"))));
}

TEST(PeerList, ArePickedByNameInTheListsOrder) {
  const std::vector<std::string> names{"redis", "raw-tmpfs", "redis"};
  const auto picked = pick_peers(names);
  ASSERT_TRUE(picked) << picked.error().message();
  ASSERT_THAT(*picked, SizeIs(2));
  EXPECT_EQ((*picked)[0]->name, "raw-tmpfs");
  EXPECT_EQ((*picked)[1]->name, "redis");
  const auto all = pick_peers({});
  ASSERT_TRUE(all);
  EXPECT_EQ(all->size(), all_peers().size());
  const std::vector<std::string> unknown{"nfs"};
  const auto none = pick_peers(unknown);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message(),
              AllOf(HasSubstr("'nfs' is not a peer"), HasSubstr("openmpi")));
}

TEST(PeerList, EveryScriptIsInTheProgram) {
  const auto directory = TemporaryDirectory::create("");
  ASSERT_TRUE(directory);
  ASSERT_TRUE(write_peer_scripts(directory->path()));
  for (const Peer& peer : all_peers()) {
    const std::string script = fmt::format("{}/{}{}", directory->path(), peer.script,
                                           peer.start == PeerStart::kProgram ? ".cc" : "");
    EXPECT_TRUE(std::filesystem::exists(script)) << script;
  }
  EXPECT_TRUE(std::filesystem::exists(directory->path() + "/requirements.txt"));
  std::ifstream file(directory->path() + "/member.py");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  // Its first and last words, with nothing of them changed on the way.
  EXPECT_TRUE(text.starts_with("\"\"\"What every process of a peer shares"));
  EXPECT_TRUE(text.ends_with("os._exit(code)\n"));
}

TEST(PeerEnvironment, WhatIsMissingIsSaidForEachPeer) {
  const auto interrupt = Interrupt::create();
  ASSERT_TRUE(interrupt);
  const auto directory = TemporaryDirectory::create("");
  ASSERT_TRUE(directory);
  ASSERT_TRUE(write_peer_scripts(directory->path()));
  std::filesystem::create_directory(directory->path() + "/bin");
  const std::string python = directory->path() + "/bin/python";
  std::ofstream(python) << "#!/bin/sh\nexec python3 -S \"$@\"\n";  // no package is there
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  const auto picked = pick_peers({});
  ASSERT_TRUE(picked);
  const auto found = find_peers(
      *picked, {.folder = directory->path(), .scripts = directory->path()}, 1, *interrupt);
  ASSERT_TRUE(found) << found.error().message();
  ASSERT_EQ(found->size(), all_peers().size());
  for (const FoundPeer& peer : *found) {
    if (peer.peer->name == "raw-tmpfs") {
      EXPECT_EQ(peer.missing, "");
      EXPECT_THAT(peer.command, ElementsAre(python, directory->path() + "/raw_file.py"));
      continue;
    }
    EXPECT_THAT(peer.missing, AllOf(AnyOf(HasSubstr("is missing"), HasSubstr("does not exist")),
                                    HasSubstr("--install")));
    EXPECT_THAT(peer.command, IsEmpty());
  }
}

TEST(ModelSource, HoldsEveryTensorAlignedAndItsDigestLeavesOutTheGaps) {
  const auto directory = TemporaryDirectory::create("");
  ASSERT_TRUE(directory);
  const auto manifest =
      Manifest::create({{.name = "model.layers.0.a", .dtype = DType::kBF16, .shape = {3}},
                        {.name = "model.layers.1.b", .dtype = DType::kF32, .shape = {20}}});
  ASSERT_TRUE(manifest) << manifest.error().message();
  std::vector<std::string> checkpoints;
  for (const int value : {1, 2}) {
    checkpoints.push_back(fmt::format("{}/checkpoint{}", directory->path(), value));
    const auto written = write_checkpoint_directory(
        checkpoints.back(), *manifest,
        [value](std::size_t tensor, std::uint64_t, std::span<std::byte> out) -> Result<> {
          std::ranges::fill(out, static_cast<std::byte>(16 * value + static_cast<int>(tensor)));
          return {};
        });
    ASSERT_TRUE(written) << written.error().message();
  }
  const auto source = make_source(directory->path(), checkpoints);
  ASSERT_TRUE(source) << source.error().message();
  EXPECT_EQ(source->bytes, 6U + 80U);
  EXPECT_EQ(source->size, kSourceAlignment + 80U);
  ASSERT_THAT(source->models, SizeIs(2));
  EXPECT_NE(source->digests[0], source->digests[1]);
  for (std::size_t model = 0; model < 2; ++model) {
    std::vector<std::byte> memory(source->size);
    ASSERT_TRUE(read_source(source->models[model], memory));
    EXPECT_EQ(memory[5], static_cast<std::byte>(16 * (model + 1)));
    EXPECT_EQ(memory[kSourceAlignment], static_cast<std::byte>(16 * (model + 1) + 1));
    memory[6] = std::byte{0x55};  // between the tensors
    EXPECT_EQ(source_digest(*source, memory), source->digests[model]);
    memory[kSourceAlignment + 79] ^= std::byte{1};
    EXPECT_NE(source_digest(*source, memory), source->digests[model]);
  }
  std::vector<std::byte> more(source->size + 1);
  EXPECT_FALSE(read_source(source->models[0], more));
}

PeersBenchResult some_result() {
  PeersBenchResult result{.bytes = 1000, .tensors = 3, .engines = 2, .rounds = 2};
  result.floor_seconds = {1, 2};
  result.wsync_seconds = {4, 4};
  result.wsync_staged_seconds = {3, 3};
  result.wsync_paused_seconds = {0.5, 0.75};
  const auto row = [&](std::size_t i) -> PeerRow& {
    return result.rows.emplace_back(PeerRow{.peer = &all_peers()[i]});
  };
  row(0).seconds = {8, 16};
  row(1).skipped = "no torch";
  row(2).seconds = {40};
  result.rows.back().failed = "round 2: engine 1: out of <memory>";
  return result;
}

TEST(PeersReport, RatiosAreOfTheSameRound) {
  const auto json = to_json(some_result());
  EXPECT_EQ(json["peers"][0]["of_floor"]["median"], 0.125);
  EXPECT_EQ(json["peers"][0]["of_wsync"]["median"], 3);
  EXPECT_EQ(json["peers"][2]["of_wsync"]["median"], 10);
  EXPECT_FALSE(json["peers"][1].contains("seconds"));
}

TEST(PeersReport, WhoDidNotTakePartIsNamedEverywhere) {
  const PeersBenchResult result = some_result();
  const std::string skipped = "safetensors-tmpfs was skipped: no torch";
  const std::string failed = "safetensors-disk failed in round 2: engine 1: out of <memory>";
  EXPECT_THAT(notes_of(result), ElementsAre(skipped, failed));
  EXPECT_THAT(to_text(result), AllOf(HasSubstr(skipped), HasSubstr(failed)));
  const SuiteResult suite = to_suite(result);
  std::vector<std::string> names;
  for (const CaseResult& one : suite.cases) names.push_back(one.name);
  EXPECT_THAT(names, ElementsAre("floor", "verified copies, wsync", "verified copies, raw-tmpfs",
                                 "staged, wsync", "paused, wsync"));
  EXPECT_THAT(suite.notes, ElementsAre(skipped, failed));
  EXPECT_THAT(suite.cases[1].ratios, ElementsAre(0.25, 0.5));
  ResultFile file;
  file.date = date_now();
  file.machine = {{"cpu", "a"}};
  file.suites.push_back(suite);
  EXPECT_TRUE(parse_result(to_json(file).dump()));
}

}  // namespace
}  // namespace wsync::bench
