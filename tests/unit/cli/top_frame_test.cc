// Frames of `wsync top` and the text that they are made of.
#include "deploy/cli/top_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "deploy/cli/report.h"
#include "deploy/cli/terminal.h"
#include "shared/base/format.h"

namespace wsync::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr TimePoint kNow{50'000'000'000};

control::ReplicaReport serving(const std::string& name, const Version& version) {
  return {.replica = name,
          .ranks_attached = 1,
          .state = control::ReplicaState::kServing,
          .ready = true,
          .version = version,
          .paused_ns = 12'000'000};
}

FleetView fleet_of(std::size_t replicas) {
  control::StatusReply status{.role = "coordinator",
                              .decision = 4,
                              .target = {2, 9},
                              .can_roll_back = true,
                              .rollback_target = {2, 8},
                              .activity = "idle",
                              .last = {.version = {2, 9},
                                       .ok = true,
                                       .bytes = 1U << 30U,
                                       .snapshot_ns = 100'000'000,
                                       .staged_ns = 400'000'000,
                                       .switch_ns = 90'000'000,
                                       .paused_ns = 55'000'000,
                                       .ended_ago_ns = 3'000'000'000},
                              .updates = {.committed = 3, .failed = 1, .cancelled = 2}};
  control::SidecarReport sidecar{.name = "host0", .connected = true, .staged = {{2, 9}}};
  for (std::size_t i = 0; i < replicas; ++i)
    sidecar.replicas.push_back(serving(fmt::format("replica-{:02}", i), {2, 9}));
  if (replicas > 0) status.sidecars.push_back(std::move(sidecar));
  return {.address = "ipc:///run/wsync/control",
          .status = std::move(status),
          .answered = kNow,
          .trouble = {}};
}

std::vector<std::string> texts(const TopFrame& frame) {
  std::vector<std::string> lines;
  for (const ScreenLine& line : frame.lines) lines.push_back(plain_text(line));
  return lines;
}

std::string joined(const TopFrame& frame) {
  std::string text;
  for (const std::string& line : texts(frame)) text += line + "\n";
  return text;
}

void expect_fits(const TopFrame& frame, ScreenSize size) {
  EXPECT_LE(frame.lines.size(), size.rows);
  for (const ScreenLine& line : frame.lines)
    EXPECT_LE(line_width(line), size.columns) << plain_text(line);
}

TEST(TopFrame, TellsWhatCameAsChanges) {
  FleetView view = fleet_of(2);
  auto& sidecars = view.status->sidecars;
  sidecars[0].replicas[1].last_load = control::LoadKind::kPatch;
  EXPECT_THAT(joined(top_frame(view, {80, 24}, 0, kNow, true)),
              HasSubstr("\n2.9 was loaded by a patch in 1 of 2 replicas\n"));
  sidecars[0].last_copy = {
      .version = {2, 9}, .base = {2, 8}, .bytes = 1U << 30U, .travelled_bytes = 3U << 20U};
  sidecars.push_back(
      {.name = "host1",
       .connected = true,
       .replicas = {serving("other", {2, 9})},
       .last_copy = {
           .version = {2, 9}, .base = {}, .bytes = 1U << 30U, .travelled_bytes = 1U << 30U}});
  // Of another version.
  sidecars.push_back(
      {.name = "host2",
       .connected = true,
       .replicas = {serving("late", {2, 8})},
       .last_copy = {
           .version = {2, 8}, .base = {2, 7}, .bytes = 1U << 30U, .travelled_bytes = 1U << 20U}});
  sidecars.back().replicas[0].last_load = control::LoadKind::kPatch;
  EXPECT_THAT(joined(top_frame(view, {140, 30}, 0, kNow, true)),
              HasSubstr("\n2.9 came as changes to 1 of 2 sidecars (3.00 MiB of 1.00 GiB), and was "
                        "loaded by a patch in 1 of 3 replicas\n"));
  for (auto& sidecar : sidecars) sidecar.last_copy.base = {};
  sidecars[0].replicas[1].last_load = control::LoadKind::kFull;
  EXPECT_THAT(joined(top_frame(view, {140, 30}, 0, kNow, true)), Not(HasSubstr("changes")));
}

TEST(TopFrame, AFleetThatRestsIn80x24) {
  FleetView view = fleet_of(2);
  view.status->sidecars[0].replicas[1] = {.replica = "replica-01",
                                          .ranks_attached = 1,
                                          .state = control::ReplicaState::kBehind,
                                          .ready = false,
                                          .version = {2, 6},
                                          .reason = "it serves 2.6; the target is 2.9"};
  view.status->incidents = {{.ago_ns = 61'000'000'000, .text = "sidecar host1 lost: it hung up"}};
  const TopFrame frame = top_frame(view, {80, 24}, 0, kNow, true);
  expect_fits(frame, {80, 24});
  const std::vector<std::string> lines = texts(frame);
  ASSERT_EQ(lines.size(), 24U) << "the keys are in the last row";
  EXPECT_EQ(lines[0], "wsync top  ipc:///run/wsync/control");
  EXPECT_EQ(lines[1], "coordinator idle  target 2.9  rollback target 2.8");
  EXPECT_EQ(lines[2],
            "replicas ready 1/2  sidecars up 1/1  3 updates served, 1 failed, 2 cancelled");
  EXPECT_THAT(lines[3], HasSubstr("last update 2.9: served 3.0 s ago, longest pause 55.0 ms"));
  EXPECT_EQ(lines[4], "  staged in 400.0 ms, snapshot 100.0 ms, 1.00 GiB");
  EXPECT_EQ(lines[5], "");
  EXPECT_EQ(lines[6], "REPLICA     SIDECAR  VERSION  STATE    READY  PAUSED LAST  BEHIND   NOTE");
  EXPECT_THAT(lines[7], AllOf(HasSubstr("replica-00"), HasSubstr("serving"), HasSubstr("12.0 ms")));
  EXPECT_THAT(lines[8], AllOf(HasSubstr("behind"), HasSubstr("NO"), HasSubstr("3 steps")));
  EXPECT_THAT(joined(frame),
              HasSubstr("RECENT PROBLEMS\n61 s ago  sidecar host1 lost: it hung up"));
  EXPECT_EQ(lines.back(), "q quit");
}

TEST(TopFrame, AnUpdateThatIsStaged) {
  FleetView view = fleet_of(1);
  view.status->activity = "staging 2.10";
  view.status->sidecars[0].staged_bytes = 512U << 20U;
  view.status->running = {.version = {2, 10},
                          .phase = control::ProgressPhase::kStage,
                          .done_bytes = 512U << 20U,
                          .total_bytes = 1U << 30U,
                          .elapsed_ns = 700'000'000,
                          .phase_ns = 500'000'000,
                          .bytes_per_s = 1'073'741'824,
                          .remaining_known = true,
                          .remaining_ns = 590'000'000,
                          .waiting = 1};
  const std::string wide = joined(top_frame(view, {120, 24}, 0, kNow, true));
  EXPECT_THAT(wide, HasSubstr("staging 2.10  [###############...............]  50 %  1.07 GB/s  "
                              "about 590.0 ms left  512 MiB of 1.00 GiB  1 waiting\n"));
  EXPECT_THAT(wide, HasSubstr("staged:  host0 512 MiB\n"));
  EXPECT_THAT(wide, Not(HasSubstr("last update")));
  const TopFrame narrow = top_frame(view, {40, 10}, 0, kNow, true);
  expect_fits(narrow, {40, 10});
  EXPECT_THAT(joined(narrow), HasSubstr("staging 2.10  50 %  1.07 GB/s"));
  view.status->running.remaining_known = false;
  EXPECT_THAT(joined(top_frame(view, {120, 24}, 0, kNow, true)), HasSubstr("700.0 ms so far"));
}

TEST(TopFrame, ColumnsGoAndTheTableScrollsIn40x10) {
  const FleetView view = fleet_of(30);
  TopFrame frame = top_frame(view, {40, 10}, 0, kNow, true);
  expect_fits(frame, {40, 10});
  EXPECT_EQ(frame.lines.size(), 10U);
  EXPECT_EQ(frame.rows, 30U);
  EXPECT_GE(frame.rows_shown, 3U);
  EXPECT_THAT(joined(frame),
              AllOf(HasSubstr("REPLICA"), HasSubstr("VERSION"), HasSubstr("STATE"),
                    HasSubstr("READY"), Not(HasSubstr("PAUSED")), Not(HasSubstr("NOTE"))));
  EXPECT_THAT(texts(frame).back(), HasSubstr("q quit   arrows, PgUp, PgDn scroll"));
  frame = top_frame(view, {40, 10}, 12, kNow, true);
  EXPECT_EQ(frame.first_row, 12U);
  EXPECT_THAT(joined(frame), HasSubstr("replica-12"));
  frame = top_frame(view, {40, 10}, 1'000, kNow, true);
  EXPECT_EQ(frame.first_row, 30 - frame.rows_shown);
  EXPECT_THAT(joined(frame), HasSubstr("replica-29"));
}

TEST(TopFrame, EverythingIsThereIn200x60) {
  FleetView view = fleet_of(30);
  view.status->incidents.assign(9, {.ago_ns = 1'000'000'000, .text = "2.7 failed: late"});
  view.status->sidecars[0].replicas[3].reason = "it is loading";
  view.status->sidecars[0].replicas[3].loaded_bytes = 5U << 20U;
  view.status->sidecars.push_back({.name = "host1", .connected = false});
  const TopFrame frame = top_frame(view, {200, 60}, 0, kNow, true);
  expect_fits(frame, {200, 60});
  EXPECT_EQ(frame.rows_shown, 31U);
  const std::string text = joined(frame);
  EXPECT_THAT(text, HasSubstr("3 updates served, 1 failed, 2 cancelled\n"));
  EXPECT_THAT(text, HasSubstr("5.00 MiB loaded; it is loading"));
  EXPECT_THAT(text, HasSubstr("this sidecar is not connected"));
  EXPECT_EQ(texts(frame).back(), "q quit");
}

TEST(TopFrame, NoReplicaAndNoAnswer) {
  EXPECT_THAT(joined(top_frame(fleet_of(0), {80, 24}, 5, kNow, true)),
              HasSubstr("no sidecar has connected"));
  FleetView view{.address = "ipc:///x", .status = {}, .trouble = {}};
  EXPECT_THAT(texts(top_frame(view, {80, 24}, 0, kNow, false)),
              ElementsAre("wsync top  ipc:///x", "connecting"));
  view.trouble = "nobody answers at ipc:///x";
  EXPECT_THAT(texts(top_frame(view, {80, 24}, 0, kNow, false)),
              ElementsAre("wsync top  ipc:///x", "NO ANSWER: nobody answers at ipc:///x"));
  view = fleet_of(1);
  view.answered = kNow + std::chrono::seconds(-4);
  view.trouble = "ipc:///x hung up";
  const TopFrame frame = top_frame(view, {80, 24}, 0, kNow, false);
  EXPECT_THAT(joined(frame), HasSubstr("NO ANSWER for 4.0 s: ipc:///x hung up\n"));
  EXPECT_THAT(joined(frame), HasSubstr("replica-00"));
}

TEST(TopFrame, AnySizeAndAnyScroll) {
  FleetView view = fleet_of(7);
  view.status->incidents.assign(3, {.ago_ns = 1, .text = "x"});
  for (unsigned columns = 1; columns < 130; columns += 7)
    for (unsigned rows = 1; rows < 40; rows += 2)
      for (const std::size_t scroll : {std::size_t{0}, std::size_t{3}, SIZE_MAX / 2})
        for (const bool keys : {false, true}) {
          const TopFrame frame = top_frame(view, {columns, rows}, scroll, kNow, keys);
          expect_fits(frame, {columns, rows});
          ASSERT_LE(frame.first_row + frame.rows_shown, frame.rows);
          if (rows >= 7) {
            ASSERT_GE(frame.rows_shown, 3U) << columns << "x" << rows;
          }
        }
}

TEST(TopFrame, WideNamesKeepTheColumnsInPlace) {
  FleetView view = fleet_of(2);
  view.status->sidecars[0].replicas[0].replica = "複製品";
  view.status->sidecars[0].replicas[1].replica = "bad\x1b[2Jname\xff";
  const std::vector<std::string> lines = texts(top_frame(view, {80, 24}, 0, kNow, false));
  const std::string& wide = lines[7];
  EXPECT_THAT(lines[8], HasSubstr("bad?[2Jname?"));
  const auto cells_before = [](const std::string& line, const std::string& word) {
    return text_width(line.substr(0, line.find(word)));
  };
  EXPECT_EQ(cells_before(wide, "serving"), cells_before(lines[8], "serving"));
}

TEST(TopFrame, LongSentencesTakeSeveralLines) {
  FleetView view = fleet_of(2);
  const std::string why =
      "the replica did not pause within 10000 ms, and is asked again until it does, which can take "
      "as long as its longest request";
  view.status->sidecars.front().replicas.front().ready = false;
  view.status->sidecars.front().replicas.front().reason = why;
  view.status->incidents = {{.ago_ns = 1, .text = "2.10 is partial: " + why}};
  view.trouble = "no process answers: " + why;
  for (const unsigned columns : {40U, 80U, 120U}) {
    const TopFrame frame =
        top_frame(view, {.columns = columns, .rows = 60}, 0, view.answered, true);
    expect_fits(frame, {.columns = columns, .rows = 60});
    std::string text;
    for (const std::string& line : texts(frame))
      text += line.substr(std::min(line.find_first_not_of(' '), line.size())) + " ";
    EXPECT_THAT(text, testing::HasSubstr("no process answers: " + why)) << columns;
    EXPECT_THAT(text, testing::HasSubstr("2.10 is partial: " + why)) << columns;
    EXPECT_THAT(text, testing::HasSubstr("NOTES replica-00: " + why)) << columns;
  }
  // A sentence that does not fit is left out, not cut.
  const TopFrame low = top_frame(view, {.columns = 40, .rows = 10}, 0, view.answered, true);
  expect_fits(low, {.columns = 40, .rows = 10});
  EXPECT_THAT(joined(low), testing::Not(testing::HasSubstr("2.10 is partial")));
}

TEST(ScreenText, LinesBreakAtSpaces) {
  const auto plain = [](const std::vector<ScreenLine>& lines) {
    std::vector<std::string> texts;
    for (const ScreenLine& line : lines) texts.push_back(plain_text(line));
    return texts;
  };
  const ScreenLine line = {{.text = "one ", .style = Style::kBold}, {.text = "two  three four"}};
  EXPECT_EQ(plain(wrapped(line, 80)), std::vector<std::string>{"one two  three four"});
  EXPECT_EQ(plain(wrapped(line, 9)), (std::vector<std::string>{"one two", "  three", "  four"}));
  EXPECT_EQ(plain(wrapped({{.text = "averylongword a"}}, 6)),
            (std::vector<std::string>{"avery~", "  a"}));
  EXPECT_EQ(plain(wrapped({}, 6)), std::vector<std::string>{""});
}

TEST(ScreenText, WidthsAndCuts) {
  EXPECT_EQ(text_width("abc"), 3U);
  EXPECT_EQ(text_width("複製"), 4U);
  EXPECT_EQ(text_width("e\xcc\x81"), 1U) << "a combining accent";
  EXPECT_EQ(clipped("abcdef", 6), "abcdef");
  EXPECT_EQ(clipped("abcdef", 4), "abc~");
  EXPECT_EQ(clipped("複製品", 4), "複~") << "a wide character is not cut in two";
  EXPECT_EQ(clipped("abc", 0), "");
  EXPECT_EQ(padded("複", 4), "複  ");
  EXPECT_EQ(printable("a\r\n\tb\x7f"), "a???b?");
  EXPECT_EQ(printable("\xc0\xaf\xed\xa0\x80\xf8"), "??????") << "no UTF-8";
  EXPECT_EQ(printable("\xe2\x80\xae"), "?") << "a change of direction";
}

TEST(Keys, OfATerminal) {
  std::string rest;
  EXPECT_THAT(read_keys("\x1b[A\x1b[B\x1b[5~\x1b[6~", rest),
              ElementsAre(Key::kUp, Key::kDown, Key::kPageUp, Key::kPageDown));
  EXPECT_THAT(read_keys("\x1bOA\x1b[H\x1b[F\x1b[1~\x1b[4~jk ", rest),
              ElementsAre(Key::kUp, Key::kHome, Key::kEnd, Key::kHome, Key::kEnd, Key::kDown,
                          Key::kUp, Key::kPageDown));
  EXPECT_THAT(read_keys("xyz\x1b[200~\x1b[1;5A", rest), IsEmpty()) << "none of ours";
  EXPECT_THAT(read_keys("\x1b[", rest), IsEmpty());
  EXPECT_THAT(read_keys("A", rest), ElementsAre(Key::kUp)) << "in two reads";
  EXPECT_THAT(read_keys("\x03", rest), ElementsAre(Key::kQuit));
  EXPECT_THAT(read_keys(std::string("\x1b[") + std::string(40, '1'), rest), IsEmpty());
  EXPECT_THAT(read_keys("q", rest), ElementsAre(Key::kQuit)) << "nonsense is not kept for ever";
}

TEST(Keys, ColoursAreSequencesAroundTheText) {
  const ScreenLine line = {{.text = "a", .style = Style::kBad}, {.text = "b"}};
  EXPECT_EQ(line_text(line, false), "ab");
  EXPECT_EQ(line_text(line, true), "\x1b[1;31ma\x1b[0mb");
}

TEST(StatusReport, TellsTheUpdateThatRunsAndTheLastOne) {
  FleetView view = fleet_of(1);
  control::StatusReply& status = *view.status;
  EXPECT_EQ(to_json(status).at("update"), nullptr);
  EXPECT_EQ(to_json(status).at("last_update").at("paused_ns"), 55'000'000);
  status.running = {.version = {2, 10},
                    .phase = control::ProgressPhase::kSwitch,
                    .done_bytes = 1,
                    .total_bytes = 4,
                    .elapsed_ns = 2'000'000'000};
  EXPECT_THAT(to_text(status),
              HasSubstr("update 2.10: switching, 25 % (1 B of 4 B), 2.0 s so far\n"));
  EXPECT_EQ(to_json(status).at("update").at("remaining_ns"), nullptr);
  status.running.rollback = true;
  EXPECT_THAT(to_text(status), HasSubstr("rollback to 2.10: switching"));
  status.last = {
      .cancelled = true, .reason = "cancelled on request", .ended_ago_ns = 200'000'000'000};
  EXPECT_THAT(to_text(status),
              HasSubstr("last update: cancelled 3 min ago: cancelled on request\n"));
  EXPECT_EQ(to_text(control::UpdateOutcome{}), "");
  EXPECT_EQ(to_json(control::StatusReply{}).at("last_update"), nullptr);
}

}  // namespace
}  // namespace wsync::cli
