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

// Slot of one running completion. It is released on destruction.
class Completions::Place {
 public:
  // Returns std::nullopt if the maximum number of completions is running.
  static std::optional<Place> take(Completions& owner) {
    Place place(owner);
    if (owner.running_.fetch_add(1) < owner.options_.at_once) return place;
    return std::nullopt;
  }
  Place(Place&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)) {}
  Place& operator=(Place&&) = delete;
  ~Place() {
    if (owner_ != nullptr) --owner_->running_;
  }

 private:
  explicit Place(Completions& owner) : owner_(&owner) {}
  Completions* owner_;
};

// A completion while it is being answered.
struct Completions::Work {
  // Whether to continue. Returns false if the client has disconnected, or if the server began to
  // stop long ago and the service has not ended the requests.
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
  Place place;
  std::unique_ptr<CompletionRun> run = nullptr;
  std::optional<TimePoint> stop_seen = std::nullopt;
};

struct Completions::Stream {
  // Sends events until all outputs have finished. Returns false if the client has disconnected or
  // the server stops.
  bool run(const wsync::http::SendPiece& send) {
    for (;;) {
      for (auto& [index, delivery] : work->run->take(milliseconds(kPollMs)))
        if (!send(event(chunk_json(work->head, work->request, index, delivery, choices[index]))))
          return false;
      if (work->run->finished()) break;
      if (!work->goes_on(connection)) return false;
    }
    return send("data: [DONE]\n\n");
  }

  std::shared_ptr<Work> work;
  Connection& connection;  // outlives this object, because it sends this stream
  std::vector<ChoiceProgress> choices;
};

Completions::Completions(const CompletionOptions& options, generation::GenerationService& service)
    : options_(options), service_(service), process_name_(random_number()) {}

Result<std::shared_ptr<Completions::Work>> Completions::begin(const Exchange& exchange) {
  const generation::ServiceInfo info = service_.info();
  auto request =
      WSYNC_TRY(read_completion(exchange.body, info,
                                !options_.has_tokenizer && info.vocabulary >= kByteTokens &&
                                    info.vocabulary <= kByteVocabularyMax));
  auto place = Place::take(*this);
  if (!place)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("this engine already answers its maximum number of completions at once "
                            "({}); try again when one has ended",
                            options_.at_once));
  const std::shared_ptr<Work> work(
      new Work{.head = {.id = fmt::format("cmpl-{:016x}{:08x}", process_name_, begun_++),
                        .created = unix_time(),
                        .model = info.model},
               .request = std::move(request),
               .place = std::move(*place)});
  auto run = WSYNC_TRY(CompletionRun::start(
      service_, work->request.requests,
      work->request.stream ? CompletionRun::Until::kNews : CompletionRun::Until::kAllFinished));
  work->run = std::move(run);
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
    // The client disconnected and will not read an answer.
    exchange.connection.close_after();
    return reply_error(exchange, 503,
                       "the engine is shutting down and did not finish this completion");
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

}  // namespace wsync::engine::http
