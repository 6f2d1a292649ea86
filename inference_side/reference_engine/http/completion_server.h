// CompletionServer: a generating engine over HTTP: OpenAI's completions, health and readiness, and
// the pauses of reinforcement learning in the form of vLLM's.
//
//   POST /v1/completions     streaming (server-sent events) or not
//   GET  /health             200 while the process lives
//   GET  /ready              200 once it serves a version; 503 with the reason before, and while a
//                            client's pause lasts
//   GET  /weight_info        the version that it serves
//   GET  /stats              what waits, runs and is cached
//   POST /pause?mode=abort|wait|keep&clear_cache=true|false&timeout_s=N    GET /is_paused
//   POST /resume             POST /reset_prefix_cache
//
// A pause without clear_cache clears it, but for mode=keep. A completion whose client closes its
// connection, or its sending half, is cancelled. Errors are JSON in OpenAI's form; requests of web
// pages (Origin) are refused.
//
// Thread: owner's, but for stop(), which any thread may call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "inference_side/reference_engine/generation/service.h"
#include "shared/observe/http/http_server.h"

namespace wsync::engine::http {

struct CompletionServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;  // 0: the kernel chooses
  // Completions that are answered at once, each with a thread of its own; more are refused with
  // 429. The other routes have threads beside.
  std::uint32_t threads = 512;
  // The model has a tokenizer of its own, which is not read: prompts are tokens only. Otherwise
  // tokens are bytes where the vocabulary has 256 to 512.
  bool has_tokenizer = false;
};

class Completions;

class CompletionServer {
 public:
  // Binds and listens, but answers nobody before start(). `service` is borrowed. Errors name host
  // and port and why: kInvalidInput, or kBusy when somebody listens there.
  [[nodiscard]] static Result<std::unique_ptr<CompletionServer>> create(
      const CompletionServerOptions& options, generation::GenerationService& service);
  ~CompletionServer();
  CompletionServer(const CompletionServer&) = delete;
  CompletionServer& operator=(const CompletionServer&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept;
  void start();
  // Accepts no more requests, asks the service to abort the completions that are under way, and
  // returns when every connection has ended: in seconds, or when a pause that is under way returns.
  void stop();

 private:
  CompletionServer(std::unique_ptr<Completions> completions,
                   std::unique_ptr<wsync::http::HttpServer> server);

  std::unique_ptr<Completions> completions_;
  std::unique_ptr<wsync::http::HttpServer> server_;  // stops before the completions go
};

}  // namespace wsync::engine::http
