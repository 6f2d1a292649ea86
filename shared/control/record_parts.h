// Encoding of the parts that the records of both sides on disk share: fences, decisions, versions,
// and the final digest. Pure functions. The ByteReader keeps the first error of a reader.
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
// Reads at most limits::kWithdrawnCount versions.
[[nodiscard]] std::vector<Version> get_versions(ByteReader& in);

// Appends the digest of all preceding bytes.
[[nodiscard]] Bytes seal_record(ByteWriter&& body);
// Returns the bytes before the digest. kInvalidInput, naming `what`, if the record is too short or
// the digest does not match.
[[nodiscard]] Result<std::span<const std::byte>> open_record(std::span<const std::byte> bytes,
                                                             std::string_view what);

}  // namespace wsync::control
