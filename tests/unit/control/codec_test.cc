#include "shared/control/codec.h"

#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "tests/unit/control/random_message.h"

namespace wsync::control {
namespace {

using testing::HasSubstr;

constexpr std::size_t kMessageKinds = std::variant_size_v<AnyMessage>;

// ---- every member of every struct is in its list ----

struct Anything {
  template <class T>
  operator T() const;  // NOLINT: converts to any member; never defined
};
template <class T, class... A>
consteval std::size_t member_count() {
  if constexpr (requires { T{A{}..., Anything{}}; })
    return member_count<T, A..., Anything>();
  else
    return sizeof...(A);
}

class Counter {
 public:
  [[nodiscard]] static constexpr bool has(Capability) { return true; }
  template <class... A>
  constexpr void number(A&&...) {
    ++count;
  }
  template <class... A>
  constexpr void bounded(A&&...) {
    ++count;
  }
  template <class... A>
  constexpr void flag(A&&...) {
    ++count;
  }
  template <class... A>
  constexpr void choice(A&&...) {
    ++count;
  }
  template <class... A>
  constexpr void label(A&&...) {
    ++count;
  }
  template <class... A>
  constexpr void sentence(A&&...) {
    ++count;
  }
  template <class... A>
  constexpr void blob(A&&...) {
    ++count;
  }
  template <class... A>
  constexpr void digest(A&&...) {
    ++count;
  }
  template <class... A>
  constexpr void version(A&&...) {
    ++count;
  }
  template <class... A>
  constexpr void part(A&&...) {
    ++count;
  }
  template <class... A>
  constexpr void list(A&&...) {
    ++count;
  }
  std::size_t count = 0;
};

template <class T>
void expect_every_member_is_listed(const char* name) {
  T value;
  Counter counter;
  fields(counter, value);
  EXPECT_EQ(counter.count, member_count<T>()) << name;
}
template <std::size_t... I>
void expect_all_listed(std::index_sequence<I...>) {
  (expect_every_member_is_listed<std::variant_alternative_t<I, AnyMessage>>(
       message_name(static_cast<MessageType>(I + 1)).data()),
   ...);
}

TEST(Codec, ListsNameEveryMember) {
  expect_all_listed(std::make_index_sequence<kMessageKinds>());
  expect_every_member_is_listed<Decision>("Decision");
  expect_every_member_is_listed<ReplicaReport>("ReplicaReport");
  expect_every_member_is_listed<CopyReport>("CopyReport");
  expect_every_member_is_listed<ReplicaOutcome>("ReplicaOutcome");
  expect_every_member_is_listed<Problem>("Problem");
  expect_every_member_is_listed<TensorMismatch>("TensorMismatch");
  expect_every_member_is_listed<VerifyRank>("VerifyRank");
  expect_every_member_is_listed<SidecarReport>("SidecarReport");
  expect_every_member_is_listed<DimRange>("DimRange");
  expect_every_member_is_listed<EngineTensor>("EngineTensor");
  expect_every_member_is_listed<HeldTensor>("HeldTensor");
  expect_every_member_is_listed<BufferHandle>("BufferHandle");
  expect_every_member_is_listed<GpuPlan>("GpuPlan");
  expect_every_member_is_listed<TraceProcess>("TraceProcess");
}

// ---- round trips ----

TEST(Codec, RoundTripOfEveryMessage) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (std::size_t kind = 0; kind < kMessageKinds; ++kind) {
      Randomiser random(seed * 1000 + kind);
      const Envelope envelope = random.envelope();
      const Message message = random.message(kind);
      const auto bytes = encode(envelope, message);
      ASSERT_TRUE(bytes.has_value()) << bytes.error().message();
      const auto decoded = decode(*bytes);
      ASSERT_TRUE(decoded.has_value()) << decoded.error().message();
      EXPECT_EQ(type_of(decoded->message), type_of(message));
      EXPECT_EQ(decoded->envelope.fence, envelope.fence);
      EXPECT_EQ(decoded->envelope.round, envelope.round);
      EXPECT_EQ(decoded->envelope.request, envelope.request);
      EXPECT_EQ(decoded->envelope.replica, envelope.replica);
      EXPECT_EQ(decoded->envelope.rank, envelope.rank);
      EXPECT_EQ(encode(decoded->envelope, decoded->message).value(), *bytes);
    }
  }
}

TEST(Codec, ValuesArriveInTheirFields) {
  Refuse refuse{.version = {.epoch = 3, .step = 77},
                .reason = "two tensors do not fit",
                .layout_unknown = true,
                .problems = {{.kind = ProblemKind::kShape,
                              .tensor = "model.embed_tokens.weight",
                              .detail = "expected [4, 8], found [4, 9]",
                              .nearest = "",
                              .expected = "BF16 [4, 8]",
                              .found = "BF16 [4, 9]"}}};
  const auto bytes =
      encode({.fence = {.epoch = 9, .run_id = {1, 2}}, .round = 5, .request = 6}, refuse);
  const auto decoded = decode(bytes.value());
  ASSERT_TRUE(decoded.has_value());
  const auto& found = std::get<Refuse>(decoded->message);
  EXPECT_EQ(found.version, (Version{.epoch = 3, .step = 77}));
  EXPECT_EQ(found.reason, "two tensors do not fit");
  EXPECT_TRUE(found.layout_unknown);
  ASSERT_EQ(found.problems.size(), 1U);
  EXPECT_EQ(found.problems[0].kind, ProblemKind::kShape);
  EXPECT_EQ(found.problems[0].tensor, "model.embed_tokens.weight");
  EXPECT_EQ(found.problems[0].expected, "BF16 [4, 8]");
  EXPECT_EQ(found.problems[0].found, "BF16 [4, 9]");
  EXPECT_EQ(decoded->envelope.fence.epoch, 9U);
}

// The format is a contract between releases: these bytes may only change with kProtocolVersion.
TEST(Codec, BytesOfOneMessageAreFixed) {
  const auto bytes = encode({.fence = {.epoch = 1, .run_id = {2, 3}},
                             .round = 4,
                             .request = 5,
                             .replica = "r0",
                             .rank = 6},
                            BucketReady{.bucket = 7, .slot = 1});
  std::string hex;
  for (const std::byte b : bytes.value()) hex += fmt::format("{:02x}", static_cast<unsigned>(b));
  EXPECT_EQ(hex,
            "57534e4313002000"
            "0c00000006000000"
            "010000000000000002000000000000000300000000000000"
            "00000000000000000000000000000000"
            "04000000000000000500000000000000"
            "0200000000000000"
            "7230"
            "070000000000000001000000");
}

TEST(Codec, BytesOfARanksReportAreFixed) {
  const auto bytes =
      encode({}, Snapshotted{.step = 7, .content_digest = {.low = 3, .high = 4}, .failure = "no"});
  std::string hex;
  for (const std::byte b : std::span(bytes.value()).subspan(kEnvelopeBytes))
    hex += fmt::format("{:02x}", static_cast<unsigned>(b));
  EXPECT_EQ(hex,
            "0700000000000000"
            "03000000000000000400000000000000"
            "020000006e6f");
  EXPECT_FALSE(encode({}, RankHello{.rank = limits::kTrainerRankCount}).has_value());
  const auto hello =
      encode({}, RankHello{.rank = 1, .world_size = 2, .pid = 3, .incarnation = 4}).value();
  hex.clear();
  for (const std::byte b : std::span(hello).subspan(kEnvelopeBytes))
    hex += fmt::format("{:02x}", static_cast<unsigned>(b));
  EXPECT_EQ(hex, "01000000020000000300000004000000");
  EXPECT_FALSE(encode({}, PublishStatus{.code = ErrorCode{99}}).has_value());
}

std::string payload(const Message& message) {
  const Bytes bytes = encode({}, message).value();
  std::string hex;
  for (const std::byte b : std::span(bytes).subspan(kEnvelopeBytes))
    hex += fmt::format("{:02x}", static_cast<unsigned>(b));
  return hex;
}

TEST(Codec, BytesOfErrorCodesAreFixed) {
  EXPECT_EQ(payload(ErrorReply{}), "0000000000");
  EXPECT_EQ(payload(ErrorReply{.code = ErrorCode::kInternal, .message = "no"}), "0b020000006e6f");
  const std::string status = payload(PublishStatus{.code = ErrorCode::kPeerLost, .reason = "no"});
  EXPECT_EQ(status.substr(status.size() - 22), "05020000006e6f00000000");
}

TEST(Codec, BytesOfTheDescriptionOfATensorAreFixed) {
  const RankShards shards{.tensors = {{.name = "w",
                                       .dtype = DType::kU64,
                                       .shape = {2},
                                       .ranges = {{.dim = 0, .begin = 1, .length = 1}}}}};
  EXPECT_EQ(payload(shards),
            "01000000"
            "0100000077"
            "15"
            "010000000200000000000000"
            "010000000000000001000000000000000100000000000000");
}

TEST(Codec, BytesOfAMeasuredClockAreFixed) {
  const TraceAnswer answer{
      .processes = {
          {.answered_ns = 1, .clock = ClockKind::kUnknown, .offset_ns = 2, .uncertainty_ns = 3}}};
  const std::string hex = payload(answer);
  EXPECT_EQ(hex.substr(hex.size() - 2 * (8 + 1 + 8 + 8 + 8 + 4)),
            "0100000000000000"
            "02"
            "0200000000000000"
            "0300000000000000"
            "0000000000000000"
            "00000000");
}

TEST(Codec, BytesOfACancelAndOfAStatusAreFixed) {
  EXPECT_EQ(payload(Cancel{.version = {.epoch = 1, .step = 2}}), "010000000200000000000000");
  EXPECT_EQ(payload(CancelReply{.ok = true,
                                .reason = "x",
                                .version = {.epoch = 1, .step = 2},
                                .phase = ProgressPhase::kStage}),
            "010100000078010000000200000000000000"
            "02");
  const std::string status = payload(
      StatusReply{.running = {.version = {.epoch = 1, .step = 2},
                              .phase = ProgressPhase::kSwitch,
                              .done_bytes = 3,
                              .total_bytes = 4,
                              .elapsed_ns = 5,
                              .phase_ns = 6,
                              .bytes_per_s = 7,
                              .remaining_known = true,
                              .remaining_ns = 8,
                              .waiting = 9},
                  .last = {.version = {.epoch = 1, .step = 1}, .cancelled = true, .paused_ns = 10},
                  .updates = {.committed = 11, .failed = 12, .cancelled = 13},
                  .incidents = {{.ago_ns = 14, .text = "y"}},
                  .data_security = "tls"});
  EXPECT_EQ(status.substr(status.size() - 2 * (67 + 66 + 24 + 17 + 7)),
            "010000000200000000000000"
            "0300"
            "03000000000000000400000000000000"
            "05000000000000000600000000000000"
            "0700000000000000"
            "010800000000000000"
            "09000000"
            "010000000100000000000000"
            "0001"
            "00000000"
            "0000000000000000000000000000000000000000000000000000000000000000"
            "0a000000000000000000000000000000"
            "0b000000000000000c000000000000000d00000000000000"
            "01000000"
            "0e000000000000000100000079"
            "03000000746c73");
  EXPECT_FALSE(
      encode({}, StatusReply{.incidents = std::vector<Incident>(limits::kIncidentCount + 1)})
          .has_value());
}

TEST(Codec, SecretsOfDataConnectionsAreAtTheEndOfTheirMessages) {
  const std::string hello = payload(Hello{.relay_secret = {std::byte{0xab}, std::byte{0xcd}}});
  EXPECT_TRUE(hello.ends_with("02000000abcdfb010000")) << hello;
  const std::string stage = payload(Stage{.key = {std::byte{0xab}}});
  EXPECT_TRUE(stage.ends_with("01000000ab")) << stage;
  EXPECT_TRUE(payload(Stage{}).ends_with("00000000"));
}

TEST(Codec, BytesOfAForgetAreFixed) {
  EXPECT_EQ(payload(Forget{.sidecar = "s", .replica = "r", .force = true}),
            "0100000073010000007201");
  EXPECT_EQ(payload(ForgetReply{.ok = true, .reason = "x"}), "010100000078");
  EXPECT_EQ(payload(ReadVersion{.has_step = true, .step = 5, .after = Version{1, 2}}),
            "0105000000000000000100000002"
            "00000000000000");
}

TEST(Codec, BytesOfALoadByPatchAreFixed) {
  EXPECT_EQ(payload(Load{.version = {.epoch = 1, .step = 2},
                         .deadline_ms = 3,
                         .copy_threads = 4,
                         .patch_base = {.epoch = 1, .step = 1},
                         .patch_bytes = 5}),
            "010000000200000000000000"
            "0300000004000000"
            "00000000"
            "010000000100000000000000"
            "0500000000000000");
  EXPECT_EQ(payload(Loaded{.version = {.epoch = 1, .step = 2},
                           .bytes = 3,
                           .copy_ns = 4,
                           .failure = {},
                           .sums = {{.words = {.product = 5, .sum = 6}, .edges = {}}},
                           .before = {{.words = {}, .edges = {.product = 7, .sum = 8}}},
                           .written_bytes = 9}),
            "010000000200000000000000"
            "03000000000000000400000000000000"
            "00000000"
            "01000000"
            "0500000000000000060000000000000000000000000000000000000000000000"
            "01000000"
            "0000000000000000000000000000000007000000000000000800000000000000"
            "0900000000000000");
  const std::string hello = payload(
      EngineHello{.gpu = "", .takes_patches = true, .not_scrubbed = "x", .has_controller = true});
  EXPECT_EQ(hello.substr(hello.size() - 30), "0000000001010000007801fb010000");
  const std::string beat =
      payload(Heartbeat{.replicas = {{.turn = ReplicaTurn::kHeld,
                                      .last_load = LoadKind::kPatch,
                                      .last_written_bytes = 10,
                                      .last_load_bytes = 11,
                                      .proved = {.epoch = 1, .step = 2},
                                      .proved_ago_ns = 12,
                                      .not_scrubbed = "x",
                                      .mismatches = 13,
                                      .last_mismatch = "y",
                                      .controller = ControllerState::kAttached}}});
  EXPECT_NE(beat.find("02"
                      "02"
                      "0a000000000000000b00000000000000"
                      "010000000200000000000000"
                      "0c00000000000000"
                      "0100000078"
                      "0d00000000000000"
                      "0100000079"
                      "02"),
            std::string::npos)
      << beat;
}

TEST(Codec, BytesOfAReadBackAreFixed) {
  EXPECT_EQ(payload(Digests{.version = {.epoch = 1, .step = 2},
                            .tensors = {{.name = "w", .digest = {.low = 3, .high = 4}, .bytes = 5}},
                            .failure = "x",
                            .is_unreadable = true}),
            "010000000200000000000000"
            "01000000"
            "0100000077"
            "03000000000000000400000000000000"
            "0500000000000000"
            "0100000078"
            "01");
  EXPECT_EQ(payload(VerifyReply{.ranks = {{.replica = "r",
                                           .rank = 1,
                                           .version = {.epoch = 2, .step = 3},
                                           .tensors = 4,
                                           .bytes = 5,
                                           .failure = "x",
                                           .is_unreadable = true,
                                           .is_controller = false,
                                           .follows = "y"}}}),
            "01000000"
            "0100000072"
            "01000000"
            "020000000300000000000000"
            "04000000000000000500000000000000"
            "0100000078"
            "00000000"
            "0100"
            "0100000079");
}

TEST(Codec, BytesOfAScrubAreFixed) {
  EXPECT_EQ(payload(Scrub{.pass = 1, .share_ppm = 2}), "010000000000000002000000");
  EXPECT_EQ(payload(Scrubbed{
                .pass = 1,
                .version = {.epoch = 2, .step = 3},
                .age_ns = 4,
                .cpu_ns = 5,
                .failure = "x",
                .sums = {{.words = {.product = 6, .sum = 7}, .edges = {.product = 8, .sum = 9}}}}),
            "0100000000000000"
            "020000000300000000000000"
            "04000000000000000500000000000000"
            "0100000078"
            "01000000"
            "0600000000000000070000000000000008000000000000000900000000000000");
}

TEST(Codec, BytesOfAPatchAheadAreFixed) {
  EXPECT_EQ(payload(PatchAhead{.version = {.epoch = 1, .step = 2},
                               .patch_base = {.epoch = 3, .step = 4},
                               .patch_bytes = 5,
                               .copy_threads = 6}),
            "010000000200000000000000"
            "030000000400000000000000"
            "050000000000000006000000");
}

TEST(Codec, BytesOfPartsAreFixed) {
  const auto fields_with_parts = [](const Message& message) {
    Envelope envelope;
    envelope.capabilities = bits(Capability::kParts);
    const Bytes bytes = encode(envelope, message).value();
    std::string hex;
    for (const std::byte b : std::span(bytes).subspan(kEnvelopeBytes))
      hex += fmt::format("{:02x}", static_cast<unsigned>(b));
    return hex;
  };
  const Bytes two{std::byte{0xab}, std::byte{0xcd}};
  EXPECT_TRUE(fields_with_parts(Announce{.parts = two}).ends_with("02000000abcd"));
  EXPECT_TRUE(fields_with_parts(RelayReady{.parts = two}).ends_with("0000000002000000abcd"));
  EXPECT_TRUE(fields_with_parts(Stage{.parts = {{.transport = "t", .source = "s", .key = two}}})
                  .ends_with("01000000"
                             "0100000074"
                             "0100000073"
                             "02000000abcd"));
  EXPECT_EQ(payload(RankServes{.host = "h",
                               .boot_id = "b",
                               .transports = {{.kind = "k", .address = "a"}},
                               .secret = two}),
            "0100000068"
            "0100000062"
            "01000000010000006b0100000061"
            "02000000abcd");
  EXPECT_EQ(payload(PartWanted{
                .question = 11,
                .step = 1,
                .bucket_count = 2,
                .windows = {{.bucket = 3, .tensor = 4, .offset = 5, .bytes = 6, .position = 7}},
                .carried = {8}}),
            "0b00000000000000"
            "01000000000000000200000000000000"
            "01000000"
            "0300000004000000"
            "050000000000000006000000000000000700000000000000"
            "0100000008000000");
  EXPECT_EQ(payload(PartSummed{.question = 11,
                               .step = 1,
                               .failure = "x",
                               .sums = {{.product = 2, .sum = 3}},
                               .carried = {{.tensor = 4, .bytes = two}}}),
            "0b00000000000000"
            "0100000000000000"
            "0100000078"
            "0100000002000000000000000300000000000000"
            "010000000400000002000000abcd");
  EXPECT_EQ(payload(PartsKept{.parts = {{.step = 1,
                                         .version = {.epoch = 2, .step = 3},
                                         .fence = {.epoch = 4, .run_id = {5, 6}, .fleet = {}},
                                         .layout = {.low = 9, .high = 10}}}}),
            "01000000"
            "0100000000000000"
            "020000000300000000000000"
            "0400000000000000"
            "05000000000000000600000000000000"
            "00000000000000000000000000000000"
            "0900000000000000"
            "0a00000000000000");
}

TEST(Codec, NamesAndTypesAgree) {
  EXPECT_EQ(message_name(MessageType::kHello), "Hello");
  EXPECT_EQ(message_name(MessageType::kError), "Error");
  EXPECT_EQ(message_name(MessageType::kEngineHello), "EngineHello");
  EXPECT_EQ(message_name(MessageType::kLoad), "Load");
  EXPECT_EQ(message_name(MessageType::kDigests), "Digests");
  EXPECT_EQ(message_name(kLastMessageType), "PartsKept");
  EXPECT_EQ(message_name(MessageType{0}), "unknown");
  EXPECT_EQ(message_name(MessageType{999}), "unknown");
  EXPECT_EQ(type_of(Message(Resumed{})), MessageType::kResumed);
}

// ---- refusals ----

Bytes sample() {
  Randomiser random(7);
  return encode(random.envelope(), random.message(0)).value();
}
void put_at(Bytes& bytes, std::size_t at, std::uint32_t value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

TEST(Codec, TruncationAtEveryByteIsRefused) {
  for (std::size_t kind = 0; kind < kMessageKinds; ++kind) {
    Randomiser random(100 + kind);
    const Bytes bytes = encode(random.envelope(), random.message(kind)).value();
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      // In a buffer of exactly n bytes, so that the address sanitizer sees a read past the end.
      Bytes cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
      const auto decoded = decode(cut);
      ASSERT_FALSE(decoded.has_value()) << "type " << kind + 1 << " cut to " << n;
      EXPECT_EQ(decoded.error().code(), ErrorCode::kInvalidInput);
      // The same with a header that agrees with the cut, so that the fields themselves are cut.
      const std::size_t payload_at = kEnvelopeBytes + static_cast<std::size_t>(bytes[72]);
      if (n >= payload_at) {
        put_at(cut, 8, static_cast<std::uint32_t>(n - payload_at));
        EXPECT_FALSE(decode(cut).has_value()) << "type " << kind + 1 << " cut to " << n;
      }
    }
  }
}

TEST(Codec, HugeLengthsAnywhereNeitherCrashNorAllocate) {
  for (std::size_t kind = 0; kind < kMessageKinds; ++kind) {
    Randomiser random(200 + kind);
    const Bytes bytes = encode(random.envelope(), random.message(kind)).value();
    for (std::size_t at = 0; at + 4 <= bytes.size(); ++at) {
      for (const std::uint32_t value : {0xffffffffU, 0x7fffffffU, 0x10000000U, 0x00100001U}) {
        Bytes changed = bytes;
        put_at(changed, at, value);
        const auto decoded = decode(changed);
        // What is still accepted was not a length: it must read back as the same bytes.
        if (decoded) {
          EXPECT_EQ(encode(decoded->envelope, decoded->message).value(), changed);
        }
      }
    }
  }
}

TEST(Codec, HugeCountNamesItsField) {
  Bytes bytes = encode({}, Switched{}).value();
  put_at(bytes, bytes.size() - 4, 0xffffffff);
  EXPECT_THAT(decode(bytes).error().message(), HasSubstr("Switched: outcomes: 4294967295 entries"));
  put_at(bytes, bytes.size() - 4, 4096);  // allowed as a count, but not in 0 bytes
  EXPECT_THAT(decode(bytes).error().message(), HasSubstr("do not fit in the 0 bytes"));
}

TEST(Codec, TrailingBytesAreRefused) {
  Bytes bytes = sample();
  bytes.push_back(std::byte{0});
  EXPECT_EQ(decode(bytes).error().code(), ErrorCode::kInvalidInput);
  std::uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 8, sizeof length);
  put_at(bytes, 8, length + 1);  // the header agrees, the fields do not
  EXPECT_THAT(decode(bytes).error().message(), HasSubstr("Hello: end: 1 bytes left over"));
}

TEST(Codec, WrongMagicIsMalformed) {
  Bytes bytes = sample();
  bytes[0] = std::byte{'X'};
  EXPECT_EQ(decode(bytes).error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(decode(bytes).error().message(), HasSubstr("the peer is not wsync"));
}

TEST(Codec, AnotherProtocolVersionIsRefusedWithAReason) {
  Bytes bytes = sample();
  bytes[4] = std::byte{1};
  const auto decoded = decode(bytes);
  EXPECT_EQ(decoded.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(decoded.error().message(), HasSubstr("protocol version 1, but this process uses 19"));
  EXPECT_EQ(decode_envelope(bytes).error().code(), ErrorCode::kRefused);
}

// ---- releases of one protocol version ----

Switched suspended_outcome() {
  return {.number = 1, .outcomes = {{.replica = "r", .is_suspended = true}, {.replica = "s"}}};
}

TEST(Capabilities, AReceiverThatHasNotNamedOneGetsNoFieldOfIt) {
  const Bytes with = encode({.capabilities = kCapabilities}, suspended_outcome()).value();
  const Bytes without = encode({}, suspended_outcome()).value();
  EXPECT_EQ(with.size(), without.size() + 2) << "one byte for each outcome";
  const Decoded found = decode(with).value();
  EXPECT_EQ(found.envelope.capabilities, kCapabilities);
  EXPECT_TRUE(std::get<Switched>(found.message).outcomes[0].is_suspended);
  EXPECT_FALSE(std::get<Switched>(found.message).outcomes[1].is_suspended);
  const Decoded lacks = decode(without).value();
  EXPECT_EQ(lacks.envelope.capabilities, 0U);
  ASSERT_EQ(std::get<Switched>(lacks.message).outcomes.size(), 2U);
  EXPECT_FALSE(std::get<Switched>(lacks.message).outcomes[0].is_suspended);
}

TEST(Capabilities, BytesOfASuspendedOutcomeAreFixed) {
  const Bytes bytes =
      encode({.capabilities = kCapabilities}, Switched{.outcomes = {{.is_suspended = true}}})
          .value();
  EXPECT_EQ(bytes[76], std::byte{kCapabilities & 0xFFU}) << "the header names the capabilities";
  EXPECT_EQ(bytes[77], std::byte{kCapabilities >> 8U});
  EXPECT_EQ(bytes.back(), std::byte{1});
  EXPECT_EQ(encode({}, Switched{.outcomes = {{}}}).value().size(), bytes.size() - 1);
}

TEST(Capabilities, BytesOfWhereAPushComesFromAreFixed) {
  const Capabilities origin = bits(Capability::kPushOrigin);
  const Push push{.directory = "/m", .step = 1, .host = "h", .boot_id = "b"};
  const Bytes with = encode({.capabilities = origin}, push).value();
  const Bytes without = encode({}, push).value();
  ASSERT_EQ(with.size(), without.size() + 10) << "two lengths and two letters";
  EXPECT_EQ(with.back(), std::byte{'b'});
  EXPECT_EQ(std::get<Push>(decode(with).value().message).host, "h");
  EXPECT_TRUE(std::get<Push>(decode(without).value().message).boot_id.empty());
  const ErrorReply error{.code = ErrorCode::kNotFound, .message = "x", .may_publish = true};
  EXPECT_TRUE(
      std::get<ErrorReply>(decode(encode({.capabilities = origin}, error).value()).value().message)
          .may_publish);
  EXPECT_FALSE(std::get<ErrorReply>(decode(encode({}, error).value()).value().message).may_publish);
}

TEST(Capabilities, BytesOfWhatASidecarThatMapsReportsAreFixed) {
  const Heartbeat beat{.patch_value_cost = 0x01020304, .lends_arenas = true};
  const Capabilities older = bits(Capability::kSuspendedOutcomes);
  const Bytes none = encode({.capabilities = older}, beat).value();
  const Bytes cost =
      encode({.capabilities = older | bits(Capability::kPatchValueCost)}, beat).value();
  const Bytes both = encode({.capabilities = kCapabilities}, beat).value();
  ASSERT_EQ(cost.size(), none.size() + 4);
  ASSERT_EQ(both.size(), none.size() + 5);
  EXPECT_THAT(
      std::vector(both.end() - 5, both.end()),
      testing::ElementsAre(std::byte{4}, std::byte{3}, std::byte{2}, std::byte{1}, std::byte{1}));
  const auto read = [](const Bytes& bytes) {
    const auto found = std::get<Heartbeat>(decode(bytes).value().message);
    return std::pair(found.patch_value_cost, found.lends_arenas);
  };
  EXPECT_EQ(read(both), std::pair(0x01020304U, true));
  EXPECT_EQ(read(cost), std::pair(0x01020304U, false));
  EXPECT_EQ(read(none), std::pair(0U, false));
}

TEST(Capabilities, TheHeaderAndTheFieldsMustAgree) {
  Bytes bytes = encode({.capabilities = kCapabilities}, suspended_outcome()).value();
  bytes[76] = std::byte{0};
  EXPECT_EQ(decode(bytes).error().code(), ErrorCode::kInvalidInput);
}

TEST(Capabilities, OnesThatThisReleaseLacksAreRefusedAndNeverSent) {
  Bytes bytes = sample();
  bytes[79] = std::byte{0x80};
  const auto decoded = decode(bytes);
  EXPECT_EQ(decoded.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(decoded.error().message(), HasSubstr("has fields of the capabilities 0x80000000"));
  const auto encoded = encode({.capabilities = 0x80000000U}, Leave{});
  EXPECT_EQ(encoded.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(encoded.error().message(), HasSubstr("Leave: capabilities: 0x80000000"));
}

TEST(Codec, AnUnknownTypeIsRefusedAndItsEnvelopeCanBeEchoed) {
  for (const std::uint16_t type :
       {std::uint16_t{0}, std::uint16_t{kMessageKinds + 1}, std::uint16_t{0xffff}}) {
    Bytes bytes = encode({.round = 3, .request = 41}, Leave{.reason = "x"}).value();
    std::memcpy(bytes.data() + 6, &type, sizeof type);
    const auto decoded = decode(bytes);
    EXPECT_EQ(decoded.error().code(), ErrorCode::kRefused);
    EXPECT_THAT(decoded.error().message(), HasSubstr(fmt::format("type {} is unknown", type)));
    EXPECT_EQ(decode_envelope(bytes).value().request, 41U);
    EXPECT_EQ(decode_envelope(bytes).value().round, 3U);
  }
}

TEST(Codec, BadEnumsAndFlagsAreRefused) {
  Bytes pause = encode({}, Pause{}).value();
  pause[kEnvelopeBytes] = std::byte{3};
  EXPECT_THAT(decode(pause).error().message(), HasSubstr("Pause: mode: value 3 is unknown"));
  Bytes push = encode({}, PushReply{}).value();
  push[kEnvelopeBytes] = std::byte{2};
  EXPECT_THAT(decode(push).error().message(), HasSubstr("PushReply: ok: a flag must be 0 or 1"));
  Bytes error = encode({}, ErrorReply{}).value();
  error[kEnvelopeBytes] = std::byte{200};
  EXPECT_THAT(decode(error).error().message(), HasSubstr("Error: code: value 200 is unknown"));
  const RankShards shards{.tensors = {{.name = "w", .dtype = kLastDType}}};
  Bytes described = encode({}, shards).value();
  EXPECT_TRUE(decode(described).has_value());
  described[kEnvelopeBytes + 9] = std::byte{kDTypeCount};
  EXPECT_THAT(decode(described).error().message(),
              HasSubstr("RankShards: dtype: value 22 is unknown"));
}

TEST(Codec, HeaderLimitsAreChecked) {
  Bytes bytes = sample();
  put_at(bytes, 12, static_cast<std::uint32_t>(limits::kReplicaRankCount));
  EXPECT_THAT(decode(bytes).error().message(), HasSubstr("rank: 256, at most 255"));
  bytes = sample();
  put_at(bytes, 72, 129);
  EXPECT_THAT(decode(bytes).error().message(), HasSubstr("replica: 129 bytes, at most 128"));
}

TEST(Codec, TheSenderIsToldWhatIsOverItsLimit) {
  EXPECT_THAT(encode({.replica = std::string(129, 'r')}, Resume{}).error().message(),
              HasSubstr("Resume: replica: a name of 129 bytes, at most 128"));
  EXPECT_THAT(encode({.rank = 256}, Resume{}).error().message(), HasSubstr("rank: 256"));
  Hello hello;
  hello.withdrawn.resize(limits::kWithdrawnCount + 1);
  EXPECT_THAT(encode({}, hello).error().message(), HasSubstr("Hello: withdrawn: 4097 entries"));
  EXPECT_THAT(encode({}, Push{.directory = std::string(5000, '/')}).error().message(),
              HasSubstr("Push: directory: 5000 bytes, at most 4096"));
  EXPECT_FALSE(encode({}, Pause{.mode = PauseMode{9}}).has_value());
  EXPECT_FALSE(encode({}, ErrorReply{.code = ErrorCode{99}}).has_value());
  EXPECT_FALSE(encode({}, RankShards{.tensors = {{.name = "w", .dtype = DType{200}}}}).has_value());
}

TEST(Codec, LongSentencesAreShortenedAtACharacter) {
  std::string text(limits::kSentenceBytes - 1, 'a');
  text += "\xc3\xa9 and more";  // the limit falls inside the two bytes of e-acute
  const auto decoded = decode(encode({}, Leave{.reason = text}).value());
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(std::get<Leave>(decoded->message).reason, std::string(limits::kSentenceBytes - 1, 'a'));
}

}  // namespace
}  // namespace wsync::control
