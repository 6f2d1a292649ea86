#include "bench/control/message_codec.h"

#include <cstring>
#include <memory>

#include "bench/harness/repeat.h"
#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/config/defaults.h"
#include "shared/weights/example/model_shape.h"
#include "shared/weights/manifest.h"

namespace wsync::bench {
namespace {

constexpr unsigned kHelloReplicas = 64;
constexpr unsigned kStatusSidecars = 1000;
constexpr std::string_view kAnnouncedModel = "Qwen3-30B-A3B";

control::ReplicaReport replica_report(unsigned i) {
  return {.replica = fmt::format("replica-{:04}", i),
          .world_size = 8,
          .ranks_attached = 8,
          .state = control::ReplicaState::kServing,
          .ready = true,
          .version = {.epoch = 3, .step = 1200},
          .reason = {},
          .loaded_bytes = 0,
          .paused_ns = 42'000'000};
}

control::Hello large_hello() {
  control::Hello hello;
  hello.name = "host-17";
  hello.host = "gpu-node-17.cluster";
  hello.pid = 4711;
  hello.boot_id = "0b4c1c7e-6d8e-4f0c-9f6e-2d1f6a1c9b55";
  hello.transports = {{"memfd", ""}, {"tcp", "tcp://127.0.0.1:40917"}};
  hello.target = {.epoch = 3, .step = 1200};
  hello.staged = {{.epoch = 3, .step = 1199}, {.epoch = 3, .step = 1200}};
  for (unsigned i = 0; i < kHelloReplicas; ++i) hello.replicas.push_back(replica_report(i));
  return hello;
}

Result<control::Announce> large_announce() {
  const auto shape = WSYNC_TRY(find_model(kAnnouncedModel));
  const auto manifest = WSYNC_TRY(Manifest::create(tensors_of(shape)));
  ByteWriter writer;
  manifest.encode(writer);
  control::Announce announce;
  announce.version = {.epoch = 3, .step = 1201};
  announce.layout_digest = manifest.layout_digest();
  announce.layout = std::move(writer).take();
  announce.bucket_bytes = config::kBucketBytesDefault;
  announce.arena_bytes = manifest.total_bytes();
  return announce;
}

control::StatusReply large_status() {
  control::StatusReply status;
  status.role = "coordinator";
  status.target = {.epoch = 3, .step = 1200};
  status.activity = "idle";
  for (unsigned i = 0; i < kStatusSidecars; ++i) {
    control::SidecarReport sidecar;
    sidecar.name = fmt::format("host-{:04}", i);
    sidecar.host = fmt::format("gpu-node-{:04}.cluster", i);
    sidecar.pid = 4711 + i;
    sidecar.connected = true;
    sidecar.target = {.epoch = 3, .step = 1200};
    sidecar.staged = {{.epoch = 3, .step = 1200}};
    sidecar.replicas = {replica_report(i)};
    status.sidecars.push_back(std::move(sidecar));
  }
  return status;
}

std::vector<double> time_and_rate(double ns, std::size_t bytes) {
  return {ns, static_cast<double>(bytes) / static_cast<double>(limits::kMiB) / (ns * 1e-9)};
}

// One message and its bytes, which its rows share.
struct Measured {
  control::Decoded decoded;
  Bytes bytes;
  Bytes copy;
};

}  // namespace

Result<std::vector<TypicalMessage>> typical_messages() {
  const control::Envelope envelope{
      .fence = {.epoch = 3, .run_id = {17, 42}}, .round = 1201, .request = 7, .replica = {}};
  control::Stage stage;
  stage.version = {.epoch = 3, .step = 1201};
  stage.transport = "memfd";
  stage.source = "/run/user/1000/wsync/host.sock";
  auto announce = WSYNC_TRY(large_announce());
  std::vector<TypicalMessage> messages;
  messages.push_back({.name = "Stage", .decoded = {.envelope = envelope, .message = stage}});
  messages.push_back({.name = fmt::format("Hello of {} replicas", kHelloReplicas),
                      .decoded = {.envelope = envelope, .message = large_hello()}});
  messages.push_back({.name = fmt::format("Announce of {}", kAnnouncedModel),
                      .decoded = {.envelope = envelope, .message = std::move(announce)}});
  messages.push_back({.name = fmt::format("StatusReply of {} replicas", kStatusSidecars),
                      .decoded = {.envelope = envelope, .message = large_status()}});
  return messages;
}

Result<> add_message_rows(const std::vector<TypicalMessage>& messages, std::vector<Row>& rows) {
  for (const TypicalMessage& message : messages) {
    auto bytes = control::encode(message.decoded.envelope, message.decoded.message);
    if (!bytes) return fail(bytes.error().with_context(message.name));
    const auto back = control::decode(*bytes);
    if (!back) return fail(back.error().with_context(message.name));
    if (control::encode(back->envelope, back->message).value_or(Bytes{}) != *bytes)
      return fail(ErrorCode::kInternal,
                  fmt::format("{}: the message differs after encoding and decoding", message.name));
    const auto measured = std::make_shared<Measured>();
    measured->decoded = message.decoded;
    measured->bytes = std::move(*bytes);
    measured->copy.resize(measured->bytes.size());
    const std::string against = case_name("memcpy of a message", message.name);
    const auto add = [&](const std::string& name, auto work) {
      const std::size_t size = measured->bytes.size();
      rows.push_back(
          {.figures = {{.name = name, .variant = message.name, .bytes = size, .against = {}},
                       {.name = name + " rate",
                        .variant = message.name,
                        .bytes = size,
                        .against = against}},
           .measure = [work, size,
                       times = std::uint64_t{0}]() mutable -> Result<std::vector<double>> {
             return time_and_rate(ns_per_call(work, times), size);
           }});
    };
    add("encode", [measured] {
      keep(control::encode(measured->decoded.envelope, measured->decoded.message));
    });
    add("decode", [measured] { keep(control::decode(measured->bytes)); });
    const std::size_t size = measured->bytes.size();
    rows.push_back({.figures = {{.name = "memcpy of a message",
                                 .variant = message.name,
                                 .bytes = size,
                                 .against = {}}},
                    .measure = [measured, size,
                                times = std::uint64_t{0}]() mutable -> Result<std::vector<double>> {
                      const double ns = ns_per_call(
                          [&] {
                            std::memcpy(measured->copy.data(), measured->bytes.data(), size);
                            keep(measured->copy);
                          },
                          times);
                      return std::vector{time_and_rate(ns, size).back()};
                    }});
  }
  return {};
}

}  // namespace wsync::bench
