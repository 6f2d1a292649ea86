// The parts that the records on disc of both sides have in common: fences, decisions, versions, and
// the digest at the end. Pure functions; a reader's violation is remembered by the ByteReader.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/control/envelope.h"

namespace wsync::control {

inline constexpr std::size_t kRecordVersionBytes = 12;  // one Version

void put(ByteWriter& out, const Fence& fence);
void put(ByteWriter& out, const Decision& decision);
void put(ByteWriter& out, const Version& version);
void put(ByteWriter& out, const Digest& digest);
void put(ByteWriter& out, std::span<const Version> versions);
[[nodiscard]] Fence get_fence(ByteReader& in);
[[nodiscard]] Decision get_decision(ByteReader& in);
[[nodiscard]] Version get_version(ByteReader& in);
[[nodiscard]] Digest get_digest(ByteReader& in);
// At most limits::kWithdrawnCount.
[[nodiscard]] std::vector<Version> get_versions(ByteReader& in);

// Appends the digest of everything before it.
[[nodiscard]] Bytes seal_record(ByteWriter&& body);
// What precedes the digest. kInvalidInput, naming `what`, when it is too short or differs.
[[nodiscard]] Result<std::span<const std::byte>> open_record(std::span<const std::byte> bytes,
                                                             std::string_view what);

}  // namespace wsync::control
