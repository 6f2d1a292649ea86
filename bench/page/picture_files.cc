#include "bench/page/picture_files.h"

#include <chrono>
#include <filesystem>
#include <fstream>

#include "bench/harness/directory.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/command/programs.h"
#include "shared/observe/trace/text_file.h"

namespace wsync::bench {
namespace {

constexpr const char* kZoom = "2";  // pixels of the PNG for one of the SVG
constexpr std::chrono::seconds kConversionPatience{60};

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

Result<> convert(const std::string& converter, const std::string& svg, const std::string& png,
                 const Interrupt& interrupt) {
  const auto directory = WSYNC_TRY(TemporaryDirectory::create(""));
  const std::string log = directory.path() + "/log";
  auto child =
      WSYNC_TRY(Child::start({.command = {converter, "--zoom", kZoom, "--output", png, svg},
                              .environment = {},
                              .log_file = log}));
  const auto end = child.wait(interrupt, now() + kConversionPatience);
  if (!end) return fail(end.error().with_context(converter));
  if (end->exit_code == 0) return {};
  return fail(ErrorCode::kIo, fmt::format("{} of {} ended with exit code {}: {}", converter, svg,
                                          end->exit_code, first_line(log)));
}

}  // namespace

Result<PictureFiles> write_pictures(const std::vector<Plot>& plots, const std::string& directory,
                                    const std::string& path, const Interrupt& interrupt) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return fail_errno(fmt::format("cannot create {}", directory), error.value());
  PictureFiles files;
  const auto converter = cli::find_program(kPictureConverter, path);
  if (!converter)
    files.png_left_out =
        fmt::format("PNG is left out: {} is not in PATH; install librsvg2-bin", kPictureConverter);
  for (const Plot& plot : plots) {
    if (plot.svg.empty()) continue;
    files.svg.push_back(fmt::format("{}/{}.svg", directory, plot.id));
    WSYNC_TRY(trace::write_text_file(files.svg.back(), plot.svg));
    if (!converter) continue;
    files.png.push_back(fmt::format("{}/{}.png", directory, plot.id));
    WSYNC_TRY(convert(*converter, files.svg.back(), files.png.back(), interrupt));
  }
  return files;
}

}  // namespace wsync::bench
