#include "bench/control/control_bench.h"

#include <algorithm>
#include <memory>

#include "bench/baseline/pings.h"
#include "bench/control/message_codec.h"
#include "bench/control/product_pings.h"
#include "bench/control/rounds.h"
#include "bench/harness/rows.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/control/frame.h"

namespace wsync::bench {
namespace {

Result<> check_control(const ControlBenchOptions& options) {
  if (options.messages == 0 || options.messages > kControlMessagesMax)
    return fail(ErrorCode::kInvalidInput, fmt::format("--messages is {}, expected 1 to {}",
                                                      options.messages, kControlMessagesMax));
  if (options.replicas.empty())
    return fail(ErrorCode::kInvalidInput, "--replicas is empty; expected at least one number");
  for (const unsigned replicas : options.replicas) {
    if (replicas == 0 || replicas > limits::kSidecarCount)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("--replicas contains {}, expected numbers from 1 to {}", replicas,
                              limits::kSidecarCount));
    if (std::ranges::count(options.replicas, replicas) > 1)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("--replicas contains {} more than once", replicas));
  }
  return {};
}

Result<Bytes> bytes_of(const control::Decoded& decoded, std::size_t prefix) {
  auto bytes = control::encode(decoded.envelope, decoded.message);
  if (!bytes) return fail(bytes.error());
  bytes->insert(bytes->begin(), prefix, std::byte{});
  return bytes;
}

// Returns messages of the same sizes, which a bare link sends in place of these messages.
Result<PingBytes> ping_bytes(const control::Decoded& question, const control::Decoded& answer,
                             std::size_t prefix) {
  auto asked = WSYNC_TRY(bytes_of(question, prefix));
  auto answered = WSYNC_TRY(bytes_of(answer, prefix));
  return PingBytes{.question = std::move(asked), .answer = std::move(answered)};
}

// A link, its name, and the link with which it is compared.
struct NamedPings {
  std::string name;     // "port"
  std::string variant;  // "ipc"; may be empty
  std::string against;  // "bare ZeroMQ, ipc"; empty: none
  std::shared_ptr<Pings> pings;
};

Result<std::vector<NamedPings>> make_links(const std::string& directory) {
  std::vector<NamedPings> links;
  const auto add = [&](const char* name, const char* variant, const char* against,
                       Result<std::unique_ptr<Pings>> pings) -> Result<> {
    if (!pings) return fail(pings.error().with_context(case_name(name, variant)));
    links.push_back({name, variant, against, std::move(*pings)});
    return {};
  };
  const auto engine =
      WSYNC_TRY(ping_bytes(engine_question(1), engine_answer(1), control::kFramePrefixBytes));
  const auto port = WSYNC_TRY(ping_bytes(port_question(1), port_answer(1), 0));
  WSYNC_TRY(add("bare Unix socket", "", "", ping_bare_unix(engine)));
  WSYNC_TRY(add("engine link", "", "bare Unix socket",
                ping_engine_link(fmt::format("{}/engine.sock", directory))));
  for (const char* kind : {"ipc", "TCP"}) {
    const bool ipc = std::string_view(kind) == "ipc";
    WSYNC_TRY(add("bare ZeroMQ", kind, "bare Unix socket",
                  ping_bare_zmq(ipc ? fmt::format("ipc://{}/bare.sock", directory)
                                    : std::string("tcp://127.0.0.1:*"),
                                port)));
    WSYNC_TRY(add("port", kind, ipc ? "bare ZeroMQ, ipc" : "bare ZeroMQ, TCP",
                  ping_port(ipc ? fmt::format("ipc://{}/port.sock", directory)
                                : std::string("tcp://127.0.0.1:0"))));
  }
  return links;
}

// "round trip, port" is a case and "ipc" its variant.
void add_ping_row(const NamedPings& link, std::string_view kind, std::vector<Row>& rows,
                  std::function<Result<double>()> measure) {
  Figure figure{.name = case_name(kind, link.name), .variant = link.variant, .against = {}};
  if (!link.against.empty()) figure.against = case_name(kind, link.against);
  rows.push_back({.figures = {std::move(figure)},
                  .measure = [measure = std::move(measure)]() -> Result<std::vector<double>> {
                    const auto value = WSYNC_TRY(measure());
                    return std::vector<double>{value};
                  }});
}

void add_ping_rows(const std::vector<NamedPings>& links, unsigned messages,
                   std::vector<Row>& rows) {
  for (const NamedPings& link : links)
    add_ping_row(link, "round trip", rows, [pings = link.pings, messages]() -> Result<double> {
      const auto taken = WSYNC_TRY(pings->round_trips(messages));
      return seconds(taken) * 1e6 / messages;
    });
  const unsigned many = kOneWayTimes * messages;
  for (const NamedPings& link : links)
    add_ping_row(link, "one way", rows, [pings = link.pings, many]() -> Result<double> {
      const auto taken = WSYNC_TRY(pings->one_way(many));
      return many / std::max(seconds(taken), 1e-9);
    });
}

Result<> add_round_rows(const std::vector<unsigned>& counts, std::vector<Row>& rows) {
  const std::string first = counted(counts.front(), "replica");
  for (const unsigned replicas : counts) {
    auto driver = RoundDriver::create(replicas);
    if (!driver) return fail(driver.error());
    const std::string variant = counted(replicas, "replica");
    rows.push_back(
        {.figures = {{.name = "update round", .variant = variant, .against = {}},
                     {.name = "update round, of each replica",
                      .variant = variant,
                      .against = replicas == counts.front()
                                     ? std::string()
                                     : case_name("update round, of each replica", first)}},
         .measure = [driver = std::make_shared<RoundDriver>(std::move(*driver)),
                     replicas]() -> Result<std::vector<double>> {
           const auto taken = WSYNC_TRY(driver->run_round());
           const double us = seconds(taken) * 1e6;
           return std::vector<double>{us, us / replicas};
         }});
  }
  return {};
}

}  // namespace

Result<SuiteResult> run_control_bench(const ControlBenchOptions& options,
                                      const Interrupt& interrupt, const OnTurn& on_turn) {
  WSYNC_TRY(check_control(options));
  const auto messages = WSYNC_TRY(typical_messages());
  const auto links = WSYNC_TRY(make_links(options.directory));
  std::vector<Row> rows;
  add_ping_rows(links, options.messages, rows);
  WSYNC_TRY(add_message_rows(messages, rows));
  WSYNC_TRY(add_round_rows(options.replicas, rows));
  auto suite =
      run_rows("control", rows, {.warm_ups = 1, .rounds = options.rounds}, interrupt, on_turn);
  if (suite) suite->parameters["messages"] = options.messages;
  return suite;
}

}  // namespace wsync::bench
