// An engine over the C API whose weights are on a GPU, in memory that it can give away, and that
// copies what it takes whole or borrows with a stream of its own.
//
// Usage: gpu_loader SOCKET REPLICA CHECKPOINT pieces|whole|borrow GPU DEVICE_INDEX [hold]
// Commands: hold: the next load_layer stays until `go` (as an argument: the first one); suspend;
// resume; sleep: the memory is given away; wake: other memory is at its addresses; damage: bytes of
// the first tensor become those of the last one. It ends with its input. Each line that it says is
// a state: attached, layer N, given up V, committed V, done COMMAND, failed: WHY.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
#include <wsync/engine.h>

#include "shared/weights/checkpoint_dir.h"
#include "tests/emulated_cuda/sleeping_memory.h"

namespace {

struct Place {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct Server {
  wsync_engine* link = nullptr;
  wsync_take take = WSYNC_TAKE_PIECES;
  std::vector<Place> places;  // of the tensors, in `memory`
  std::unique_ptr<wsync::SleepingMemory> memory;
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable changed;
  // All below: protected by `mutex`.
  bool is_attached = false;  // and has said so
  bool holds = false;
  std::map<std::uint32_t, wsync_layer_tensor> borrowed;
};

void say(const std::string& line) { std::cout << line + "\n" << std::flush; }

std::string name_of(wsync_version version) {
  return std::to_string(version.epoch) + "." + std::to_string(version.step);
}

std::byte* address(const Server& server, std::size_t tensor) {
  return server.memory->range().data() + server.places[tensor].offset;
}

int on_pause(void* user, const wsync_pause* /*pause*/) {
  wsync_engine_report_paused(static_cast<Server*>(user)->link, 1);
  return 0;
}

int on_load_layer(void* user, wsync_version version, std::uint32_t layer,
                  const wsync_layer_tensor* tensors, size_t count) {
  auto& server = *static_cast<Server*>(user);
  std::unique_lock lock(server.mutex);
  server.changed.wait(lock, [&] { return server.is_attached; });
  say("layer " + std::to_string(layer));
  server.changed.wait(lock, [&] { return !server.holds; });
  for (size_t i = 0; i < count; ++i) {
    const wsync_layer_tensor& tensor = tensors[i];
    if (server.take == WSYNC_TAKE_WHOLE && tensor.bytes != 0)
      server.memory->copy(address(server, tensor.tensor), tensor.data, tensor.bytes);
    if (server.take == WSYNC_TAKE_BORROW) server.borrowed[tensor.tensor] = tensor;
  }
  if (server.take != WSYNC_TAKE_BORROW) return 0;
  if (server.borrowed.size() < server.places.size()) return WSYNC_LATER;
  server.workers.emplace_back([&server, version] {
    const std::lock_guard packing(server.mutex);
    for (const auto& [t, tensor] : server.borrowed)
      if (tensor.bytes != 0) server.memory->copy(address(server, t), tensor.data, tensor.bytes);
    wsync_engine_report_loaded(server.link, version, 0);
  });
  return WSYNC_LATER;
}

int on_load_begin(void* user, wsync_version /*version*/) {
  auto& server = *static_cast<Server*>(user);
  const std::lock_guard lock(server.mutex);
  server.borrowed.clear();
  return 0;
}

// The thread that packs begins with the last layer, so nothing reads those that have come.
void on_load_given_up(void* user, wsync_version version) {
  auto& server = *static_cast<Server*>(user);
  const std::lock_guard lock(server.mutex);
  say("given up " + name_of(version));
  server.borrowed.clear();
  wsync_engine_fail(server.link, "it was given up before its last layer");
  wsync_engine_report_loaded(server.link, version, 1);
}

int on_commit(void* /*user*/, wsync_version version) {
  say("committed " + name_of(version));
  return 0;
}

int on_resume(void* /*user*/) { return 0; }

int on_read_tensor(void* user, std::uint32_t tensor, std::uint64_t offset, void* out,
                   std::uint64_t bytes) {
  auto& server = *static_cast<Server*>(user);
  server.memory->copy_to_host(out, address(server, tensor) + offset, bytes);
  return 0;
}

bool attach(Server& server, const wsync::Manifest& manifest) {
  for (std::size_t t = 0; t < manifest.size(); ++t) {
    const auto& info = manifest.tensor(t);
    const std::string dtype(wsync::dtype_name(info.dtype));
    const wsync_tensor tensor{
        .name = info.name.c_str(),
        .dtype = dtype.c_str(),
        .shape = info.shape.data(),
        .shape_count = info.shape.size(),
        .destination = server.take == WSYNC_TAKE_PIECES ? address(server, t) : nullptr};
    if (wsync_engine_add_tensor(server.link, &tensor) != 0) return false;
  }
  return wsync_engine_attach(server.link) == 0 && wsync_engine_start(server.link) == 0;
}

void serve(Server& server) {
  for (std::string command; std::getline(std::cin, command);) {
    int failed = 0;
    if (command == "hold" || command == "go") {
      const std::lock_guard lock(server.mutex);
      server.holds = command == "hold";
      server.changed.notify_all();
    } else if (command == "suspend") {
      failed = wsync_engine_suspend(server.link);
    } else if (command == "resume") {
      failed = wsync_engine_resume(server.link);
    } else if (command == "sleep") {
      server.memory->sleep();
    } else if (command == "wake") {
      server.memory->wake();
    } else if (command == "damage") {
      server.memory->copy(address(server, 0), address(server, server.places.size() - 1), 16);
    }
    say(failed == 0 ? "done " + command
                    : std::string("failed: ") + wsync_engine_error(server.link));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7 && (argc != 8 || std::string(argv[7]) != "hold")) {
    std::cerr << "usage: gpu_loader SOCKET REPLICA CHECKPOINT pieces|whole|borrow GPU DEVICE "
                 "[hold]\n";
    return 2;
  }
  const auto checkpoint = wsync::CheckpointDirectory::open(argv[3]).value();
  const std::string take = argv[4];
  const int gpu = std::stoi(argv[5]);
  Server server;
  server.holds = argc == 8;
  server.take = take == "whole"    ? WSYNC_TAKE_WHOLE
                : take == "borrow" ? WSYNC_TAKE_BORROW
                                   : WSYNC_TAKE_PIECES;
  std::uint64_t end = 0;
  for (std::size_t t = 0; t < checkpoint.manifest().size(); ++t) {
    server.places.push_back({.offset = end, .bytes = checkpoint.manifest().byte_size(t)});
    end = (end + server.places.back().bytes + 255) / 256 * 256;
  }
  server.memory = std::make_unique<wsync::SleepingMemory>(gpu, end);
  const wsync_engine_options options{.socket_path = argv[1],
                                     .replica = argv[2],
                                     .world_size = 1,
                                     .leader = 1,
                                     .device = static_cast<std::uint32_t>(std::stoi(argv[6])),
                                     .take = server.take,
                                     .callbacks = {.pause = on_pause,
                                                   .load_begin = on_load_begin,
                                                   .load_layer = on_load_layer,
                                                   .commit = on_commit,
                                                   .resume = on_resume,
                                                   .read_tensor = on_read_tensor,
                                                   .load_given_up = on_load_given_up},
                                     .user = &server,
                                     .weights_on = WSYNC_DEVICE_CUDA,
                                     .gpu = gpu};
  server.link = wsync_engine_create(&options);
  if (server.link == nullptr || !attach(server, checkpoint.manifest())) {
    std::cerr << wsync_engine_error(server.link) << "\n";
    return 1;
  }
  while (wsync_engine_status(server.link).attached == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  {
    const std::lock_guard lock(server.mutex);
    say("attached");
    server.is_attached = true;
    server.changed.notify_all();
  }
  serve(server);
  wsync_engine_stop(server.link);
  for (std::thread& worker : server.workers) worker.join();
  wsync_engine_destroy(server.link);
  return 0;
}
