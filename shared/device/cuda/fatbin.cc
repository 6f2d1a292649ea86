#include "shared/device/cuda/fatbin.h"

// The assembler embeds the file made by the build. The driver requires an alignment of 8 bytes.
asm(".pushsection .rodata.wsync_fatbin, \"a\"\n"
    ".balign 64\n"
    ".hidden wsync_fatbin_begin\n"
    ".globl wsync_fatbin_begin\n"
    "wsync_fatbin_begin:\n"
    ".incbin \"" WSYNC_FATBIN
    "\"\n"
    ".hidden wsync_fatbin_end\n"
    ".globl wsync_fatbin_end\n"
    "wsync_fatbin_end:\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" const std::byte wsync_fatbin_begin[];
extern "C" const std::byte wsync_fatbin_end[];

namespace wsync::device {

std::span<const std::byte> fatbin() noexcept { return {wsync_fatbin_begin, wsync_fatbin_end}; }

}  // namespace wsync::device
