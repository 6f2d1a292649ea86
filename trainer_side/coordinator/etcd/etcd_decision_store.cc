#include "trainer_side/coordinator/etcd/etcd_decision_store.h"

#include <algorithm>
#include <random>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/weights/json_text.h"

namespace wsync::coordinator::etcd {
namespace {

using std::chrono::milliseconds;

// A lease is extended this often. It outlives two extensions that come to nothing.
constexpr milliseconds kExtendEvery = kLeaseTime / 3;
// A write that is not answered for this long is reported.
constexpr milliseconds kTroubleAfter{5000};

double seconds_since(TimePoint begin) {
  return std::chrono::duration<double>(now() - begin).count();
}

// The first line is for people, the second one tells this process from every other.
Bytes leader_value(const std::string& self) {
  std::random_device random;
  const std::string text =
      fmt::format("{}\n{:08x}{:08x}{:08x}{:08x}", self, random(), random(), random(), random());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string shown_holder(const KeyValue& leader) {
  const std::string_view text(reinterpret_cast<const char*>(leader.value.data()),
                              leader.value.size());
  return quote_text(text.substr(0, text.find('\n')));
}

}  // namespace

Result<std::unique_ptr<EtcdDecisionStore>> EtcdDecisionStore::create(EtcdStoreOptions options) {
  std::shared_ptr<const http::ClientTls> tls;
  if (std::ranges::any_of(options.members,
                          [](const std::string& url) { return url.starts_with("https://"); }))
    tls = WSYNC_TRY(http::ClientTls::create(options.tls));
  auto client = WSYNC_TRY(EtcdClient::create(options.members, tls));
  auto lease_client = WSYNC_TRY(EtcdClient::create(options.members, tls));
  return std::unique_ptr<EtcdDecisionStore>(new EtcdDecisionStore(
      std::move(options), std::move(tls), std::move(client), std::move(lease_client)));
}

EtcdDecisionStore::EtcdDecisionStore(EtcdStoreOptions options,
                                     std::shared_ptr<const http::ClientTls> tls,
                                     std::unique_ptr<EtcdClient> client,
                                     std::unique_ptr<EtcdClient> lease_client)
    : options_(std::move(options)),
      tls_(std::move(tls)),
      record_key_(fmt::format("/wsync/{}/record", options_.fleet)),
      leader_key_(fmt::format("/wsync/{}/leader", options_.fleet)),
      leader_value_(leader_value(options_.self)),
      client_(std::move(client)),
      lease_client_(std::move(lease_client)) {}

EtcdDecisionStore::~EtcdDecisionStore() {
  cancel();
  if (keeper_.joinable()) keeper_.join();
  if (lease_ == 0) return;
  // A client that was not cancelled. What is not heard is not repeated: the lease ends by itself.
  if (const auto last = EtcdClient::create({options_.members.front()}, tls_))
    (void)(*last)->ask(kRevokePath, lease_request(lease_));
}

std::string EtcdDecisionStore::name() const {
  return fmt::format("{} in etcd ({})", record_key_, fmt::join(options_.members, ", "));
}

void EtcdDecisionStore::cancel() {
  client_->cancel();
  lease_client_->cancel();
}

tl::unexpected<Error> EtcdDecisionStore::no_answer(const std::string& doing,
                                                   const std::string& why) const {
  const auto seconds = options_.wait_limit.count() / 1000;
  return fail(ErrorCode::kIo,
              fmt::format("{}: no member of etcd has done it{}: {}", doing,
                          seconds > 0 ? fmt::format(" for {} s", seconds) : std::string(), why));
}

Result<std::string> EtcdDecisionStore::ask(EtcdClient& client, std::string_view path,
                                           const std::string& body,
                                           const std::string& doing) const {
  const TimePoint end = now() + options_.wait_limit;
  for (;;) {
    EtcdClient::Answer answer = client.ask(path, body);
    if (answer.is_done) return std::move(answer.body);
    if (answer.is_refused)
      return fail(ErrorCode::kIo, fmt::format("{}: etcd refuses it: {}", doing, answer.failure));
    if (now() >= end) return no_answer(doing, answer.failure);
    if (!client.pause()) return fail(ErrorCode::kCancelled, doing + ": this process ends");
  }
}

Result<EtcdDecisionStore::Known> EtcdDecisionStore::known_of(const KeyValue& found) const {
  if (found.revision == 0) return Known{};
  auto record = decode_coordinator_record(found.value);
  if (!record)
    return fail(record.error().with_context(
        name() +
        " is damaged: restore it, or remove the key (the sidecars remember their "
        "decisions)"));
  return Known{.revision = found.revision, .record = std::move(*record)};
}

Result<std::optional<CoordinatorRecord>> EtcdDecisionStore::read() {
  const std::string body =
      WSYNC_TRY(ask(*client_, kRangePath, range_request(record_key_), "reading " + name()));
  const KeyValue found = WSYNC_TRY(parse_range(body));
  known_ = WSYNC_TRY(known_of(found));
  return known_->record;
}

Result<PutAnswer> EtcdDecisionStore::put(std::uint64_t revision, const Bytes& value) {
  const std::string request = put_request(record_key_, revision, value);
  const std::string doing = "storing " + name();
  const TimePoint begin = now();
  bool is_unknown = false;
  bool is_lost = false;  // an attempt may still be stored later
  bool is_reported = false;
  for (;;) {
    EtcdClient::Answer answer = client_->ask(kTransactionPath, request);
    if (answer.is_done) {
      if (is_reported)
        options_.on_trouble(
            fmt::format("etcd answers again, after {:.1f} s", seconds_since(begin)));
      Result<PutAnswer> parsed = parse_put(answer.body);
      if (parsed) return parsed;
      is_unknown = is_lost = true;
      answer.failure = parsed.error().message();
    } else {
      if (planted("lost_answer_is_a_failure")) return no_answer(doing, answer.failure);
      is_unknown |= answer.may_be_done;
      is_lost |= answer.is_lost;
    }
    if (is_unknown) {
      // Every majority knows by now what was stored before this read.
      const EtcdClient::Answer looked = client_->ask(kRangePath, range_request(record_key_));
      const Result<KeyValue> found =
          looked.is_done ? parse_range(looked.body) : fail(ErrorCode::kIo, looked.failure);
      if (found && found->value == value)
        return PutAnswer{.is_stored = true, .revision = found->revision, .found = {}};
      if (found && found->revision != revision)
        return PutAnswer{.is_stored = false, .revision = 0, .found = *found};
      if (found && !is_lost)
        return fail(ErrorCode::kIo, fmt::format("{}: etcd refuses it: {}", doing, answer.failure));
    }
    if (!is_unknown && answer.is_refused)
      return fail(ErrorCode::kIo, fmt::format("{}: etcd refuses it: {}", doing, answer.failure));
    if (!is_unknown && now() - begin >= options_.wait_limit)
      return no_answer(doing, answer.failure);
    if (is_unknown && !is_reported && now() - begin >= kTroubleAfter) {
      is_reported = true;
      options_.on_trouble(fmt::format(
          "etcd has not said for {:.0f} s whether a decision is stored ({}), so nothing is decided "
          "until it does; engines go on serving",
          seconds_since(begin), answer.failure));
    }
    if (!client_->pause())
      return fail(ErrorCode::kCancelled,
                  doing + ": this process ends, and it is not known whether it was stored");
  }
}

Result<CoordinatorRecord> EtcdDecisionStore::write(const CoordinatorRecord& next) {
  const bool claims = next.number == 0;
  if (!known_) (void)WSYNC_TRY(read());
  for (;;) {
    WSYNC_TRY(check_replaces(next, known_->record));
    CoordinatorRecord written = next;
    if (claims && known_->record && known_->record->fence != next.fence)
      written = after_claim(next, *known_->record);
    const Bytes value = encode(written);
    const PutAnswer answer = WSYNC_TRY(put(known_->revision, value));
    if (answer.is_stored) {
      known_ = Known{.revision = answer.revision, .record = written};
      return written;
    }
    // Somebody has written since; it may have been this write, whose answer was lost.
    if (planted("changed_record_not_checked")) {
      known_->revision = answer.found.revision;
      continue;
    }
    known_ = WSYNC_TRY(known_of(answer.found));
    if (answer.found.value == value) return written;
    // Only a claim creates it, and this coordinator has claimed.
    if (!claims && !known_->record)
      return fail(
          ErrorCode::kFenced,
          fmt::format("{} was removed since this coordinator has claimed it, so another one "
                      "may lead the fleet: start this one again",
                      name()));
  }
}

// ---- the lease ----

Result<> EtcdDecisionStore::put_leader(const std::string& advice, std::chrono::seconds wait) {
  const std::string doing = "naming this coordinator in etcd";
  const std::string granted =
      WSYNC_TRY(ask(*lease_client_, kGrantPath, grant_request(kLeaseTime), doing));
  lease_ = WSYNC_TRY(parse_grant(granted));
  const TimePoint end = now() + wait;
  std::uint64_t revision = 0;
  bool has_said = false;
  for (;;) {
    const std::string body =
        WSYNC_TRY(ask(*lease_client_, kTransactionPath,
                      put_request(leader_key_, revision, leader_value_, lease_), doing));
    const PutAnswer answer = WSYNC_TRY(parse_put(body));
    if (answer.is_stored || answer.found.value == leader_value_) return {};
    const std::string holder = shown_holder(answer.found);
    if (options_.claims == Claim::kTakeOver) {
      revision = answer.found.revision;
      continue;
    }
    if (now() >= end)
      return fail(ErrorCode::kBusy,
                  fmt::format("another coordinator leads fleet '{}' in etcd ({}): {}; {}",
                              options_.fleet, fmt::join(options_.members, ", "), holder, advice));
    if (answer.found.revision != 0 && !std::exchange(has_said, true))
      log_info(
          "fleet '{}' has a coordinator in etcd, {}: waiting {} s at most for its lease to end",
          options_.fleet, holder, wait.count());
    revision = 0;
    // The lease of this process runs as well.
    (void)lease_client_->ask(kKeepAlivePath, lease_request(lease_));
    if (!lease_client_->pause()) return fail(ErrorCode::kCancelled, doing + ": this process ends");
  }
}

Result<> EtcdDecisionStore::lead(const std::string& advice) {
  WSYNC_TRY(put_leader(advice, kLeaseTime + std::chrono::seconds(1)));
  keeper_ = std::thread([this] { keep_lead(); });
  return {};
}

Result<> EtcdDecisionStore::stand_by(const std::function<void(const std::string&)>& on_wait) {
  std::string said;
  const auto wait_for = [&](const std::string& what) {
    if (said != what) on_wait(said = what);
    return lease_client_->pause(kStandByLook);
  };
  for (;;) {
    // A look costs etcd less than a lease.
    const EtcdClient::Answer looked = lease_client_->ask(kRangePath, range_request(leader_key_));
    const Result<KeyValue> found =
        looked.is_done ? parse_range(looked.body) : fail(ErrorCode::kIo, looked.failure);
    if (looked.is_refused && !lease_client_->is_cancelled())
      return fail(ErrorCode::kRefused, "looking for a coordinator in etcd: " + looked.failure);
    std::string what = found ? std::string() : "etcd does not answer: " + found.error().message();
    if (found && found->revision != 0)
      what = fmt::format("fleet '{}' is led by {}", options_.fleet, shown_holder(*found));
    if (what.empty()) {
      const auto leads = put_leader({}, std::chrono::seconds(0));
      if (leads) break;
      what = leads.error().message();
    }
    if (!wait_for(what)) return fail(ErrorCode::kCancelled, "this process ends");
  }
  keeper_ = std::thread([this] { keep_lead(); });
  return {};
}

void EtcdDecisionStore::keep_lead() {
  extended_ = now();
  bool has_ended = false;
  while (lease_client_->pause(kExtendEvery)) {
    if (const auto other = extend_lease()) {
      options_.on_replaced(*other);
      return;
    }
    if (lease_client_->is_cancelled()) return;
    if (now() - extended_ >= kLeaseTime && !std::exchange(has_ended, true))
      options_.on_lease_ended(silence_);
  }
}

std::optional<std::string> EtcdDecisionStore::extend_lease() {
  // What is not answered is asked again; writes report that etcd does not answer.
  const TimePoint begin = now();
  const EtcdClient::Answer asked = lease_client_->ask(kKeepAlivePath, lease_request(lease_));
  const auto extended = parse_keep_alive(asked.body);
  if (!extended) {
    silence_ = asked.is_done ? extended.error().message() : asked.failure;
    return std::nullopt;
  }
  extended_ = begin;
  if (!*extended) {
    // This process, or etcd, stood still for longer than the lease.
    const auto lease = parse_grant(lease_client_->ask(kGrantPath, grant_request(kLeaseTime)).body);
    if (!lease) return std::nullopt;
    lease_ = *lease;
    (void)lease_client_->ask(kTransactionPath, put_request(leader_key_, 0, leader_value_, lease_));
  }
  const auto found = parse_range(lease_client_->ask(kRangePath, range_request(leader_key_)).body);
  // Removed by somebody, or not written because the answer to the put above was none.
  if (found && found->revision == 0)
    (void)lease_client_->ask(kTransactionPath, put_request(leader_key_, 0, leader_value_, lease_));
  if (!found || found->revision == 0 || found->value == leader_value_) return std::nullopt;
  return shown_holder(*found);
}

}  // namespace wsync::coordinator::etcd
