#include "inference_side/reference_engine/http/completions.h"

#include <chrono>
#include <optional>
#include <random>
#include <utility>

#include "inference_side/reference_engine/http/completion_run.h"
#include "inference_side/reference_engine/http/openai.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"

namespace wsync::engine::http {
namespace {

using generation::Delivery;
using std::chrono::milliseconds;

constexpr std::string_view kIdPrefix = "cmpl-";
constexpr const char* kStreamType = "text/event-stream";

std::uint64_t random_number() {
  std::random_device device;
  return (std::uint64_t{device()} << 32U) | device();
}

std::int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string event(const nlohmann::json& body) {
  return fmt::format("data: {}\n\n", json_line(body));
}

void append(Delivery& to, Delivery&& news) {
  to.tokens.insert(to.tokens.end(), std::make_move_iterator(news.tokens.begin()),
                   std::make_move_iterator(news.tokens.end()));
  if (news.finished) to.finished = news.finished;
}

}  // namespace

// A completion in the list of those that run, for as long as it lives.
class Completions::Entry {
 public:
  // None when as many run as may.
  static std::optional<Entry> make(Completions& owner, const std::string& name) {
    const std::lock_guard lock(owner.mutex_);
    if (owner.running_.size() >= owner.options_.at_once) return std::nullopt;
    return Entry(owner, owner.running_.emplace(name, Running{}));
  }
  Entry(Entry&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)), place_(other.place_) {}
  Entry& operator=(Entry&&) = delete;
  ~Entry() {
    if (owner_ == nullptr) return;
    const std::lock_guard lock(owner_->mutex_);
    owner_->running_.erase(place_);
  }
  // False: it has been aborted meanwhile, when it had no ids yet.
  bool set(const std::vector<generation::RequestId>& ids) {
    const std::lock_guard lock(owner_->mutex_);
    place_->second.ids = ids;
    return !place_->second.aborted;
  }

 private:
  using Place = decltype(Completions::running_)::iterator;
  Entry(Completions& owner, Place place) : owner_(&owner), place_(place) {}
  Completions* owner_;
  Place place_;
};

// A completion while it is answered.
struct Completions::Work {
  // Whether to go on: not when the client has gone, or when the service has ended nothing long
  // after the server began to stop.
  bool goes_on(const Connection& connection) {
    if (connection.hung_up()) return false;
    if (!connection.stopping()) return true;
    if (!stop_seen) {
      stop_seen = now();
      run->abort();
    }
    return now() - *stop_seen < milliseconds(kStopGraceMs);
  }

  CompletionHead head;
  CompletionRequest request;
  Entry entry;
  std::unique_ptr<CompletionRun> run = nullptr;
  std::optional<TimePoint> stop_seen = std::nullopt;
};

struct Completions::Stream {
  // Sends the events until all outputs have finished. False: there is nobody to send them to any
  // more, or the server stops.
  bool run(const wsync::http::SendPiece& send) {
    for (;;) {
      for (auto& [index, delivery] : work->run->take(milliseconds(kPollMs))) {
        generated += delivery.tokens.size();
        if (!send(event(chunk_json(work->head, work->request, index, delivery, choices[index]))))
          return false;
      }
      if (work->run->finished()) break;
      if (!work->goes_on(connection)) return false;
    }
    std::string end;
    if (work->request.include_usage) end = event(usage_json(work->head, work->request, generated));
    return send(end + "data: [DONE]\n\n");
  }

  std::shared_ptr<Work> work;
  Connection& connection;  // answers this stream, so outlives it
  std::vector<ChoiceProgress> choices;
  std::uint64_t generated = 0;  // tokens
};

Completions::Completions(const CompletionOptions& options, generation::GenerationService& service)
    : options_(options), service_(service), process_name_(random_number()) {}

std::string Completions::new_name() {
  const std::lock_guard lock(mutex_);
  return fmt::format("{:016x}{:08x}", process_name_, begun_++);
}

Result<std::shared_ptr<Completions::Work>> Completions::begin(const Exchange& exchange) {
  const generation::ServiceInfo info = service_.info();
  auto request =
      WSYNC_TRY(read_completion(exchange.body, info,
                                !options_.has_tokenizer && info.vocabulary >= kByteTokens &&
                                    info.vocabulary <= kByteVocabularyMost));
  constexpr const char* kIdHeader = "X-Request-Id";
  std::string name = std::move(request.id);
  if (auto id = exchange.request.header(kIdHeader)) {
    name = std::move(*id);
    WSYNC_TRY(check_request_id(kIdHeader, name));
  }
  if (name.empty()) name = new_name();
  auto entry = Entry::make(*this, name);
  if (!entry)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("as many completions are answered as this engine takes at once ({}); "
                            "try again when one has ended",
                            options_.at_once));
  const std::shared_ptr<Work> work(new Work{
      .head = {.id = std::string(kIdPrefix) + name, .created = unix_time(), .model = info.model},
      .request = std::move(request),
      .entry = std::move(*entry)});
  auto run = WSYNC_TRY(CompletionRun::start(
      service_, work->request.requests,
      work->request.stream ? CompletionRun::Until::kNews : CompletionRun::Until::kAllFinished));
  work->run = std::move(run);
  if (!work->entry.set(work->run->ids())) work->run->abort();
  return work;
}

void Completions::answer(Exchange& exchange) {
  auto work = begin(exchange);
  if (!work) {
    if (work.error().code() == ErrorCode::kNotFound)
      reply_error(exchange, 404, work.error().message(), "model_not_found");
    else
      reply_error(exchange, work.error());
  } else if ((*work)->request.stream) {
    answer_stream(exchange, std::move(*work));
  } else {
    answer_whole(exchange, **work);
  }
}

void Completions::answer_whole(Exchange& exchange, Work& work) {
  std::vector<Delivery> outputs(work.request.requests.size());
  while (!work.run->finished()) {
    for (auto& [index, delivery] : work.run->take(milliseconds(kPollMs)))
      append(outputs[index], std::move(delivery));
    if (work.run->finished() || work.goes_on(exchange.connection)) continue;
    // A client that has gone does not read it.
    exchange.connection.close_after();
    return reply_error(exchange, 503, "the engine is ending and did not end this completion");
  }
  reply(exchange, completion_json(work.head, work.request, outputs));
}

void Completions::answer_stream(Exchange& exchange, std::shared_ptr<Work> work) {
  const std::size_t choices = work->request.requests.size();
  const std::shared_ptr<Stream> stream(new Stream{.work = std::move(work),
                                                  .connection = exchange.connection,
                                                  .choices = std::vector<ChoiceProgress>(choices)});
  exchange.response.set_header("Cache-Control", "no-cache");
  exchange.response.type = kStreamType;
  exchange.response.stream = [stream](const wsync::http::SendPiece& send) {
    return stream->run(send);
  };
}

std::vector<std::string> Completions::abort(const std::vector<std::string>& names) {
  std::vector<generation::RequestId> ids;
  std::vector<std::string> unknown;
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& name : names) {
      std::string_view bare = name;
      if (running_.find(bare) == running_.end() && bare.starts_with(kIdPrefix))
        bare.remove_prefix(kIdPrefix.size());
      const auto [first, last] = running_.equal_range(bare);
      if (first == last) unknown.push_back(name);
      for (auto place = first; place != last; ++place) {
        place->second.aborted = true;
        ids.insert(ids.end(), place->second.ids.begin(), place->second.ids.end());
      }
    }
  }
  // No ids would be all requests of the engine.
  if (!ids.empty()) service_.abort(ids);
  return unknown;
}

}  // namespace wsync::engine::http
