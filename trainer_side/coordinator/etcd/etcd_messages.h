// What is asked of etcd, and what it answers: the JSON of its API v3, as the gateway of each member
// speaks it over HTTP (https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/). Keys and values are
// base64 there, and 64-bit numbers are texts. Pure.
//
// Every parser takes the bytes of somebody else: it accepts an object with the fields that it
// needs, and returns kInvalidInput with a sentence for everything else. Unknown fields are left
// out, because later releases of etcd add some.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "shared/base/bytes.h"
#include "shared/base/error.h"

namespace wsync::coordinator::etcd {

// Paths of the requests.
inline constexpr std::string_view kRangePath = "/v3/kv/range";
inline constexpr std::string_view kTransactionPath = "/v3/kv/txn";
inline constexpr std::string_view kGrantPath = "/v3/lease/grant";
inline constexpr std::string_view kKeepAlivePath = "/v3/lease/keepalive";
inline constexpr std::string_view kRevokePath = "/v3/lease/revoke";

// What a key holds. etcd numbers all changes of its store: `revision` is that of the newest change
// of this key; 0 = the key does not exist.
struct KeyValue {
  std::uint64_t revision = 0;
  Bytes value;
  friend bool operator==(const KeyValue&, const KeyValue&) = default;
};

// Reads one key. etcd asks a majority of its members first, so the answer has every change that
// was confirmed to anybody before.
[[nodiscard]] std::string range_request(std::string_view key);
[[nodiscard]] Result<KeyValue> parse_range(std::string_view body);

// One transaction: stores `value` if the newest change of the key is still `revision`; otherwise
// reads the key. `lease`: the key goes when this lease ends; 0: it stays.
[[nodiscard]] std::string put_request(std::string_view key, std::uint64_t revision,
                                      std::span<const std::byte> value, std::int64_t lease = 0);
struct PutAnswer {
  bool is_stored = false;
  std::uint64_t revision = 0;  // of the key, if it is stored
  KeyValue found;              // if it is not
};
[[nodiscard]] Result<PutAnswer> parse_put(std::string_view body);

// A lease is a time that etcd counts, and that somebody extends again and again.
[[nodiscard]] std::string grant_request(std::chrono::seconds time);
// Returns the number of the lease.
[[nodiscard]] Result<std::int64_t> parse_grant(std::string_view body);
[[nodiscard]] std::string lease_request(std::int64_t lease);  // to extend or to end it
// Returns whether the lease still lives.
[[nodiscard]] Result<bool> parse_keep_alive(std::string_view body);

// An answer whose HTTP status is not 200.
struct Refusal {
  std::string text;  // one sentence
  // etcd may have done what was asked although it says this. Otherwise it has not.
  bool may_be_done = true;
  // If it has, a read shows it from now on.
  bool is_settled = false;
  // Another member, or the same one later, would say the same.
  bool is_final = false;
};
[[nodiscard]] Refusal parse_refusal(int status, std::string_view body);

}  // namespace wsync::coordinator::etcd
