#include "trainer_side/publish/fleet_trace.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <unistd.h>
#include <utility>

#include "shared/base/host.h"
#include "shared/observe/trace/clock_offset.h"
#include "shared/observe/trace/limits.h"
#include "shared/observe/trace/span_codec.h"
#include "trainer_side/publish/trainer_agent.h"

namespace wsync::publish {
namespace {

constexpr std::chrono::milliseconds kProbeDeadline{1'000};
constexpr std::chrono::milliseconds kTraceDeadline{5'000};

trace::ClockReading reading_of(const control::TraceProcess& process) {
  return {.kind = static_cast<trace::ClockKind>(process.clock),
          .offset = std::chrono::nanoseconds(process.offset_ns),
          .uncertainty = std::chrono::nanoseconds(process.uncertainty_ns)};
}

void put(control::TraceProcess& process, const trace::ClockReading& reading) {
  process.clock = static_cast<std::uint8_t>(reading.kind);
  process.offset_ns = reading.offset.count();
  process.uncertainty_ns = static_cast<std::uint64_t>(reading.uncertainty.count());
}

const control::TraceProcess* process_in(const FleetAnswer& answer) {
  const auto* traced = std::get_if<control::TraceAnswer>(&answer.message);
  return !answer.failure.empty() || traced == nullptr || traced->processes.size() != 1
             ? nullptr
             : &traced->processes.front();
}

}  // namespace

void measure_clock(control::TraceProcess& process, TimePoint heard) {
  put(process, trace::clock_offset({.asked = TimePoint{process.asked_ns},
                                    .received = TimePoint{process.received_ns},
                                    .answered = TimePoint{process.answered_ns},
                                    .heard = heard}));
}

control::TraceAnswer gathered_trace(control::TraceProcess own,
                                    const std::vector<FleetAnswer>& probes,
                                    std::vector<FleetAnswer> answers,
                                    const std::string& own_boot_id) {
  control::TraceAnswer gathered;
  own.clock = static_cast<std::uint8_t>(trace::ClockKind::kSame);
  gathered.processes.push_back(std::move(own));
  for (FleetAnswer& answer : answers) {
    const control::TraceProcess* found = process_in(answer);
    if (found == nullptr) {
      gathered.processes.push_back(
          {.name = "sidecar " + answer.sidecar,
           .failure = answer.failure.empty() ? "gave no trace" : answer.failure});
      continue;
    }
    control::TraceProcess& process = gathered.processes.emplace_back(*found);
    trace::ClockReading clock = reading_of(process);
    for (const FleetAnswer& probe : probes)
      if (const auto* probed = process_in(probe); probed && probe.sidecar == answer.sidecar)
        clock = trace::better_of(clock, reading_of(*probed));
    if (!own_boot_id.empty() && process.boot_id == own_boot_id) clock = trace::on_one_host(clock);
    put(process, clock);
  }
  return gathered;
}

// ---- of the agent ----

control::TraceProcess TrainerAgent::own_trace(const control::TraceQuestion& question,
                                              TimePoint received) const {
  control::TraceProcess own{.name = "coordinator",
                            .host = host_name(),
                            .pid = static_cast<std::uint32_t>(::getpid()),
                            .boot_id = boot_id(),
                            .asked_ns = question.asked_ns,
                            .received_ns = static_cast<std::int64_t>(received),
                            .answered_ns = static_cast<std::int64_t>(received)};
  trace::EncodedSpans encoded = trace::answer_spans(
      trace_.recorder(), std::chrono::nanoseconds(question.age_ns), question.max_bytes, received);
  own.dropped = encoded.left_out;
  own.spans = std::move(encoded.bytes);
  return own;
}

void TrainerAgent::collect_trace(const control::TraceQuestion& question,
                                 std::function<void(control::TraceAnswer)> on_done) {
  const TimePoint received = now();
  control::TraceQuestion share = question;
  share.max_bytes = std::min(question.max_bytes, limits::kTraceAnswerBytes) /
                    (coordinator_.roster().members().size() + 1);
  auto probes = std::make_shared<std::vector<FleetAnswer>>();
  const auto ask = [this](control::TraceQuestion asked, FleetQuestions::OnDone then) {
    asked.asked_ns = static_cast<std::int64_t>(now());
    questions_.ask(coordinator_.roster(), next_request_++, asked,
                   asked.max_bytes == 0 ? kProbeDeadline : kTraceDeadline, std::move(then));
  };
  const auto finish = [this, probes, share, received,
                       on_done = std::move(on_done)](std::vector<FleetAnswer> answers) {
    on_done(gathered_trace(own_trace(share, received), *probes, std::move(answers), boot_id()));
  };
  const auto keep = [probes](std::vector<FleetAnswer>& answers) {
    std::ranges::move(answers, std::back_inserter(*probes));
  };
  // One after the other, so that none of them waits behind the spans of another.
  ask({}, [ask, keep, finish, share](std::vector<FleetAnswer> first) {
    keep(first);
    ask({}, [ask, keep, finish, share](std::vector<FleetAnswer> second) {
      keep(second);
      ask(share, finish);
    });
  });
}

}  // namespace wsync::publish
