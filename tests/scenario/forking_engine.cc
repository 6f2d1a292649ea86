// An engine over the C API that forks when it is told to on standard input.
//
// Usage: forking_engine SOCKET REPLICA CHECKPOINT pieces|adopt [starting]
// With `starting` it tells the sidecar that it is starting, and does nothing else until `attach`.
// Commands: fork [again | run | spawn]: a child that stays; fork_unnoticed: one that keeps the
// descriptors; fork_and_call: one that calls every function; fork_engine REPLICA: one that is an
// engine itself, says when it is attached, and stays; status; dump FILE: writes the bytes of all of
// its tensors, one after the other, and says their names in this order; quit.
#include <cstring>
#include <deque>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>
#include <wsync/engine.h>

#include "shared/weights/checkpoint_dir.h"
#include "tests/scenario/forking.h"

namespace {

using wsync::say;

struct Server {
  wsync_engine* link = nullptr;
  std::deque<std::vector<std::byte>> memory;  // of the tensors
};

int on_pause(void* user, const wsync_pause* /*pause*/) {
  wsync_engine_report_paused(static_cast<Server*>(user)->link, 1);
  return 0;
}
int on_load_layer(void* /*user*/, wsync_version /*version*/, std::uint32_t /*layer*/,
                  const wsync_layer_tensor* /*tensors*/, size_t /*count*/) {
  return 0;
}
int on_commit(void* /*user*/, wsync_version /*version*/) { return 0; }
int on_resume(void* /*user*/) { return 0; }

void create(Server& server, const char* socket, const char* replica, wsync_take take) {
  const wsync_engine_options options{.socket_path = socket,
                                     .replica = replica,
                                     .world_size = 1,
                                     .leader = 1,
                                     .take = take,
                                     .callbacks = {.pause = on_pause,
                                                   .load_layer = on_load_layer,
                                                   .commit = on_commit,
                                                   .resume = on_resume},
                                     .user = &server};
  server.link = wsync_engine_create(&options);
}

void attach(Server& server, const wsync::Manifest& manifest) {
  int failed = server.link == nullptr ? 1 : 0;
  for (std::size_t i = 0; i < manifest.size() && failed == 0; ++i) {
    const auto& info = manifest.tensor(i);
    const std::string dtype(wsync::dtype_name(info.dtype));
    const wsync_tensor tensor{
        .name = info.name.c_str(),
        .dtype = dtype.c_str(),
        .shape = info.shape.data(),
        .shape_count = info.shape.size(),
        .destination = server.memory.emplace_back(manifest.byte_size(i)).data()};
    failed = wsync_engine_add_tensor(server.link, &tensor);
  }
  if (failed != 0 || wsync_engine_attach(server.link) != 0 ||
      wsync_engine_start(server.link) != 0) {
    say({{"event", "failed"}, {"error", wsync_engine_error(server.link)}});
    std::exit(1);
  }
  while (wsync_engine_status(server.link).attached == 0) ::usleep(1000);
  say({{"event", "attached"}, {"pid", ::getpid()}});
}

void begin(Server& server, const char* socket, const char* replica, const wsync::Manifest& manifest,
           wsync_take take) {
  create(server, socket, replica, take);
  attach(server, manifest);
}

void dump(const Server& server, const wsync::Manifest& manifest, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    const std::vector<std::byte>& bytes = server.memory.at(i);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    names.push_back(manifest.tensor(i).name);
  }
  file.close();
  say({{"event", "dumped"}, {"ok", static_cast<bool>(file)}, {"tensors", names}});
}

// In a child.
void call_all(wsync_engine* engine) {
  const std::uint64_t shape = 1;
  const wsync_tensor tensor{.name = "t", .dtype = "U8", .shape = &shape, .shape_count = 1};
  wsync_engine_report_paused(engine, 7);
  wsync_engine_report_running(engine, 7);
  say({{"event", "called"},
       {"codes",
        {wsync_engine_report_starting(engine), wsync_engine_add_tensor(engine, &tensor),
         wsync_engine_attach(engine), wsync_engine_start(engine), wsync_engine_poll(engine, 1000),
         wsync_engine_fd(engine)}},
       {"attached", wsync_engine_status(engine).attached},
       {"error", wsync_engine_error(engine)}});
  wsync_engine_stop(engine);
  wsync_engine_destroy(engine);
  wsync_engine_destroy(engine);  // nothing has happened
}

}  // namespace

int main(int argc, char** argv) {
  const bool starting = argc == 6 && std::strcmp(argv[5], "starting") == 0;
  if (argc != 5 && !starting) return 2;
  const auto directory = wsync::CheckpointDirectory::open(argv[3]);
  if (!directory) return 2;
  const wsync_take take = std::strcmp(argv[4], "adopt") == 0 ? WSYNC_TAKE_ADOPT : WSYNC_TAKE_PIECES;
  Server server;
  create(server, argv[1], argv[2], take);
  if (!starting) attach(server, directory->manifest());
  if (starting) {
    const int code = wsync_engine_report_starting(server.link);
    say({{"event", "starting"}, {"code", code}, {"error", wsync_engine_error(server.link)}});
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    std::string argument;
    words >> command >> argument;
    if (command == "fork") {
      wsync::make_idle_child(argument);
    } else if (command == "fork_unnoticed") {
      wsync::make_unnoticed_child();
    } else if (command == "attach") {
      attach(server, directory->manifest());
    } else if (command == "fork_and_call") {
      wsync::in_child([&] { call_all(server.link); });
    } else if (command == "fork_engine") {
      if (::fork() != 0) continue;
      Server other;
      begin(other, argv[1], argument.c_str(), directory->manifest(), take);
      for (;;) ::pause();
    } else if (command == "dump") {
      dump(server, directory->manifest(), argument);
    } else if (command == "status") {
      const auto status = wsync_engine_status(server.link);
      say({{"event", "status"}, {"attached", status.attached}, {"step", status.active.step}});
    } else {
      break;
    }
  }
  wsync_engine_destroy(server.link);
  return 0;
}
