#include "shared/control/codec.h"

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"
#include "shared/control/fields.h"

static_assert(wsync::limits::kTensorCount * (wsync::limits::kTensorNameBytes / 4) <=
                  wsync::limits::kMessageBytes,
              "a layout of typical names fits in a message");

namespace wsync::control {
namespace {

// Computes the smallest encoded size of a T: the sum over its fields, with empty strings and lists.
// It bounds the number of list elements that the remaining bytes can hold.
class MinimumBytes {
 public:
  [[nodiscard]] static bool has(Capability) noexcept { return false; }
  template <class T>
  void number(std::string_view, T&) {
    total_ += sizeof(T);
  }
  template <class T>
  void bounded(std::string_view, T&, std::uint64_t) {
    total_ += sizeof(T);
  }
  void flag(std::string_view, bool&) { total_ += 1; }
  template <class T>
  void choice(std::string_view, T&, T) {
    total_ += sizeof(T);
  }
  void label(std::string_view, std::string&, std::uint64_t) { total_ += 4; }
  void sentence(std::string_view, std::string&) { total_ += 4; }
  void blob(std::string_view, Bytes&) { total_ += 4; }
  void blob(std::string_view, SharedBytes&) { total_ += 4; }
  void digest(std::string_view, Digest&) { total_ += 16; }
  void version(std::string_view, Version&) { total_ += 12; }
  template <class T>
  void part(std::string_view, T& value) {
    fields(*this, value);
  }
  template <class T>
  void list(std::string_view, std::vector<T>&, std::uint64_t) {
    total_ += 4;
  }
  [[nodiscard]] std::size_t total() const noexcept { return total_; }

 private:
  std::size_t total_ = 0;
};

template <class T>
std::size_t minimum_bytes() {
  if constexpr (std::integral<T>) {
    return sizeof(T);
  } else if constexpr (std::same_as<T, Version>) {
    return 12;
  } else {
    T value{};
    MinimumBytes visitor;
    fields(visitor, value);
    return visitor.total();
  }
}

// Returns the longest prefix of at most max_bytes that does not cut a UTF-8 character.
std::string_view shorten(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  std::size_t n = max_bytes;
  while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xC0U) == 0x80U) --n;
  return text.substr(0, n);
}

class Encoder {
 public:
  Encoder(ByteWriter& writer, Capabilities capabilities)
      : writer_(writer), capabilities_(capabilities) {}

  [[nodiscard]] bool has(Capability one) const noexcept { return contains(capabilities_, one); }

  template <std::integral T>
  void number(std::string_view, const T& value) {
    writer_.put(value);
  }
  template <std::integral T>
  void bounded(std::string_view name, const T& value, std::uint64_t greatest) {
    if (value > greatest) violate(name, fmt::format("{}, at most {} allowed", value, greatest));
    writer_.put(value);
  }
  void flag(std::string_view, const bool& value) {
    writer_.put(static_cast<std::uint8_t>(value ? 1 : 0));
  }
  template <class T>
  void choice(std::string_view name, const T& value, T last) {
    if (value > last)
      violate(name, fmt::format("value {} is unknown", static_cast<std::uint64_t>(value)));
    writer_.put(value);
  }
  void label(std::string_view name, const std::string& value, std::uint64_t max_bytes) {
    if (value.size() > max_bytes)
      violate(name, fmt::format("{} bytes, at most {} allowed", value.size(), max_bytes));
    else
      writer_.put_string(value);
  }
  void sentence(std::string_view, const std::string& value) {
    writer_.put_string(shorten(value, limits::kSentenceBytes));
  }
  void blob(std::string_view name, std::span<const std::byte> value) {
    if (value.size() > limits::kMessageBytes) {
      violate(name,
              fmt::format("{} bytes, at most {} allowed", value.size(), limits::kMessageBytes));
      return;
    }
    writer_.put(static_cast<std::uint32_t>(value.size()));
    writer_.put_raw(value);
  }
  void digest(std::string_view, const Digest& value) {
    writer_.put(value.low);
    writer_.put(value.high);
  }
  void version(std::string_view, const Version& value) {
    writer_.put(value.epoch);
    writer_.put(value.step);
  }
  template <class T>
  void part(std::string_view, const T& value) {
    fields(*this, value);
  }
  template <class T>
  void list(std::string_view name, const std::vector<T>& values, std::uint64_t max_count) {
    if (values.size() > max_count) {
      violate(name, fmt::format("{} entries, at most {} allowed", values.size(), max_count));
      return;
    }
    writer_.put(static_cast<std::uint32_t>(values.size()));
    for (const T& value : values) {
      if constexpr (std::integral<T>)
        writer_.put(value);
      else if constexpr (std::same_as<T, Version>)
        version(name, value);
      else
        fields(*this, value);
    }
  }
  [[nodiscard]] const std::string& violation() const noexcept { return violation_; }

 private:
  void violate(std::string_view name, std::string_view what) {
    if (violation_.empty()) violation_ = fmt::format("{}: {}", name, what);
  }
  ByteWriter& writer_;
  const Capabilities capabilities_;
  std::string violation_;
};

class Decoder {
 public:
  Decoder(ByteReader& reader, Capabilities capabilities)
      : reader_(reader), capabilities_(capabilities) {}

  [[nodiscard]] bool has(Capability one) const noexcept { return contains(capabilities_, one); }

  template <std::integral T>
  void number(std::string_view name, T& value) {
    value = reader_.get<T>(name);
  }
  template <std::integral T>
  void bounded(std::string_view name, T& value, std::uint64_t greatest) {
    value = reader_.get<T>(name);
    if (value > greatest)
      reader_.violate(name, fmt::format("{}, at most {} allowed", value, greatest));
  }
  void flag(std::string_view name, bool& value) { value = reader_.get_bool(name); }
  template <class T>
  void choice(std::string_view name, T& value, T last) {
    value = reader_.get_enum(last, name);
  }
  void label(std::string_view name, std::string& value, std::uint64_t max_bytes) {
    value = reader_.get_string(max_bytes, name);
  }
  void sentence(std::string_view name, std::string& value) {
    value = reader_.get_string(limits::kSentenceBytes, name);
  }
  void blob(std::string_view name, Bytes& value) {
    value = reader_.get_raw(reader_.get_count(limits::kMessageBytes, 1, name), name);
  }
  void blob(std::string_view name, SharedBytes& value) {
    Bytes bytes;
    blob(name, bytes);
    value = std::move(bytes);
  }
  void digest(std::string_view name, Digest& value) {
    value.low = reader_.get<std::uint64_t>(name);
    value.high = reader_.get<std::uint64_t>(name);
  }
  void version(std::string_view name, Version& value) {
    value.epoch = reader_.get<std::uint32_t>(name);
    value.step = reader_.get<std::uint64_t>(name);
  }
  template <class T>
  void part(std::string_view, T& value) {
    fields(*this, value);
  }
  template <class T>
  void list(std::string_view name, std::vector<T>& values, std::uint64_t max_count) {
    const std::uint32_t count = reader_.get_count(max_count, minimum_bytes<T>(), name);
    values.clear();
    values.reserve(count);
    for (std::uint32_t i = 0; i < count && reader_.ok(); ++i) {
      T& value = values.emplace_back();
      if constexpr (std::integral<T>)
        value = reader_.get<T>(name);
      else if constexpr (std::same_as<T, Version>)
        version(name, value);
      else
        fields(*this, value);
    }
  }

 private:
  ByteReader& reader_;
  const Capabilities capabilities_;
};

struct Header {
  std::uint16_t type = 0;
  std::uint32_t payload_bytes = 0;
  Envelope envelope;
};

// Reads the header and the replica's name. The reader then stands at the payload.
Result<Header> read_header(ByteReader& reader) {
  const auto magic = reader.get<std::uint32_t>("magic");
  const auto protocol = reader.get<std::uint16_t>("protocol version");
  if (reader.ok() && magic != kMagic)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("message: begins with {:#010x}, expected {:#010x}: the peer is not wsync",
                    magic, kMagic));
  if (reader.ok() && protocol != kProtocolVersion)
    return fail(ErrorCode::kRefused,
                fmt::format("message: protocol version {}, but this process uses {}: run the same "
                            "release of wsync on both sides",
                            protocol, kProtocolVersion));
  Header header;
  header.type = reader.get<std::uint16_t>("type");
  header.payload_bytes = reader.get<std::uint32_t>("payload length");
  header.envelope.rank = reader.get<std::uint32_t>("rank");
  if (header.envelope.rank >= limits::kReplicaRankCount)
    reader.violate("rank", fmt::format("{}, at most {} allowed", header.envelope.rank,
                                       limits::kReplicaRankCount - 1));
  Decoder decoder(reader, 0);
  fields(decoder, header.envelope.fence);
  header.envelope.round = reader.get<std::uint64_t>("round");
  header.envelope.request = reader.get<std::uint64_t>("request");
  const auto replica_bytes = reader.get<std::uint32_t>("replica length");
  header.envelope.capabilities = reader.get<Capabilities>("capabilities");
  if (const Capabilities foreign = header.envelope.capabilities & ~kCapabilities;
      reader.ok() && foreign != 0)
    return fail(ErrorCode::kRefused,
                fmt::format("message: has fields of the capabilities {:#x}, which this process "
                            "lacks and has not named: the sender is at fault",
                            foreign));
  if (replica_bytes > limits::kReplicaNameBytes)
    reader.violate("replica", fmt::format("{} bytes, at most {} allowed", replica_bytes,
                                          limits::kReplicaNameBytes));
  const Bytes replica = reader.get_raw(replica_bytes, "replica");
  header.envelope.replica.assign(reinterpret_cast<const char*>(replica.data()), replica.size());
  if (header.payload_bytes != reader.remaining())
    reader.violate("payload length", fmt::format("says {} bytes, but the message has {}",
                                                 header.payload_bytes, reader.remaining()));
  if (reader.ok()) return header;
  return fail(reader.finish("message header").error());
}

// Entries in the order of the alternatives of Message: message type t is entry t - 1.
template <std::size_t I>
Message decode_alternative(ByteReader& reader, Capabilities capabilities) {
  std::variant_alternative_t<I, AnyMessage> message;
  Decoder decoder(reader, capabilities);
  fields(decoder, message);
  return message;
}
template <std::size_t... I>
constexpr auto make_decoders(std::index_sequence<I...>) {
  static_assert(
      ((static_cast<std::size_t>(std::variant_alternative_t<I, AnyMessage>::kType) == I + 1) &&
       ...),
      "Message lists the structs in the order of MessageType");
  return std::array<Message (*)(ByteReader&, Capabilities), sizeof...(I)>{
      &decode_alternative<I>...};
}
constexpr auto kDecoders =
    make_decoders(std::make_index_sequence<std::variant_size_v<AnyMessage>>());
static_assert(kDecoders.size() == static_cast<std::size_t>(kLastMessageType));

}  // namespace

std::uint64_t encoded_bytes_max() noexcept {
  return kEnvelopeBytes + limits::kReplicaNameBytes + limits::kMessageBytes;
}

MessageType type_of(const Message& message) noexcept {
  return static_cast<MessageType>(message.index() + 1);
}

std::string_view message_name(MessageType type) noexcept {
  static constexpr std::array<std::string_view, kDecoders.size()> kNames = {
      "Hello",       "Welcome",        "Announce",       "Accept",         "Refuse",
      "Stage",       "Staged",         "Decide",         "Decided",        "Switched",
      "Abort",       "Heartbeat",      "Leave",          "Error",          "Push",
      "PushReply",   "Progress",       "Rollback",       "RollbackReply",  "Verify",
      "VerifyReply", "Status",         "StatusReply",    "EngineHello",    "EngineWelcome",
      "Prepare",     "Prepared",       "Release",        "Pause",          "Paused",
      "Load",        "BucketReady",    "BucketAck",      "Loaded",         "Commit",
      "Committed",   "Resume",         "Resumed",        "ReadDigests",    "Digests",
      "RankHello",   "RankShards",     "Snapshotted",    "PublishStatus",  "Plan",
      "PlanReply",   "Cancel",         "CancelReply",    "TraceQuestion",  "TraceAnswer",
      "Ping",        "Pong",           "Turns",          "Promote",        "PromoteReply",
      "Forget",      "ForgetReply",    "UnmapArenas",    "EngineStarting", "ReadVersion",
      "Scrub",       "Scrubbed",       "PublisherHello", "FleetFacts",     "RoundRequest",
      "SnapshotEnd", "RoundReplaced",  "RoundGivenUp",   "RoundPhase",     "RoundEnd",
      "RoundLoss",   "VersionDropped", "TargetChanged",  "RelayVersion",   "RelayReady",
      "PatchAhead",  "RankServes",     "PartWanted",     "PartSummed",     "PartsKept"};
  const auto index = static_cast<std::size_t>(type) - 1;
  return index < kNames.size() ? kNames[index] : "unknown";
}

Result<Bytes> encode(const Envelope& envelope, const Message& message) {
  const std::string_view name = message_name(type_of(message));
  if (envelope.replica.size() > limits::kReplicaNameBytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: replica: a name of {} bytes, at most {} allowed", name,
                            envelope.replica.size(), limits::kReplicaNameBytes));
  if (envelope.rank >= limits::kReplicaRankCount)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: rank: {}, at most {} allowed", name, envelope.rank,
                            limits::kReplicaRankCount - 1));
  if ((envelope.capabilities & ~kCapabilities) != 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: capabilities: {:#x}, this process has {:#x}", name,
                            envelope.capabilities, kCapabilities));
  ByteWriter writer;
  writer.put(kMagic);
  writer.put(kProtocolVersion);
  writer.put(type_of(message));
  const std::size_t length_at = writer.size();
  writer.put(std::uint32_t{0});
  writer.put(envelope.rank);
  Encoder encoder(writer, envelope.capabilities);
  fields(encoder, envelope.fence);
  writer.put(envelope.round);
  writer.put(envelope.request);
  writer.put(static_cast<std::uint32_t>(envelope.replica.size()));
  writer.put(envelope.capabilities);
  WSYNC_CHECK(writer.size() == kEnvelopeBytes, "the header's size is part of the wire format");
  writer.put_raw(std::as_bytes(std::span(envelope.replica)));
  const std::size_t payload_at = writer.size();
  std::visit([&encoder](const auto& alternative) { fields(encoder, alternative); }, message);
  if (!encoder.violation().empty())
    return fail(ErrorCode::kInvalidInput, fmt::format("{}: {}", name, encoder.violation()));
  const std::size_t payload_bytes = writer.size() - payload_at;
  if (payload_bytes > limits::kMessageBytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: {} bytes, at most {} allowed in one message", name, payload_bytes,
                            limits::kMessageBytes));
  const auto length = static_cast<std::uint32_t>(payload_bytes);
  std::memcpy(writer.buffer().data() + length_at, &length, sizeof length);
  return std::move(writer).take();
}

Result<Decoded> decode(std::span<const std::byte> bytes) {
  if (bytes.size() > encoded_bytes_max())
    return fail(ErrorCode::kInvalidInput, fmt::format("message: {} bytes, at most {} allowed",
                                                      bytes.size(), encoded_bytes_max()));
  ByteReader reader(bytes);
  auto header = WSYNC_TRY(read_header(reader));
  if (header.type == 0 || header.type > kDecoders.size())
    return fail(ErrorCode::kRefused,
                fmt::format("message: type {} is unknown, this process supports 1 to {}",
                            header.type, kDecoders.size()));
  const auto type = static_cast<MessageType>(header.type);
  Message message = kDecoders[header.type - 1U](reader, header.envelope.capabilities);
  WSYNC_TRY(reader.finish(message_name(type)));
  return Decoded{std::move(header.envelope), std::move(message)};
}

Result<Envelope> decode_envelope(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  auto header = WSYNC_TRY(read_header(reader));
  return std::move(header.envelope);
}

}  // namespace wsync::control
