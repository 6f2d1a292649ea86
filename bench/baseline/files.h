// Files that are read: from a disk, past the page cache, and from memory.
#pragma once

#include <string>

#include "bench/baseline/workbench.h"

namespace wsync::bench {

// Adds the rows of files. The file of the disk is made in `directory`; where that lies in memory,
// the row is left out, with a note. The parameter `disk_read` says how the cache is passed:
// "O_DIRECT", or "fadvise", by which the kernel is asked to forget the file before each reading.
// `bench` outlives the rows. Each measurement checks what was read.
[[nodiscard]] Result<> add_file_rows(Workbench& bench, const std::string& directory,
                                     BaselineRows& rows);

}  // namespace wsync::bench
