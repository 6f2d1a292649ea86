/* What the C APIs of both sides share: <wsync/engine.h> and <wsync/trainer.h>. */
#ifndef WSYNC_TYPES_H
#define WSYNC_TYPES_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define WSYNC_API __attribute__((visibility("default")))
#else
#define WSYNC_API
#endif

/* Where memory is that a caller gives. */
typedef enum {
  WSYNC_DEVICE_HOST = 0,
  WSYNC_DEVICE_CUDA = 1 /* in the memory of a GPU */
} wsync_device;

/* epoch.step; 0.0 is no version. */
typedef struct {
  uint32_t epoch;
  uint64_t step;
} wsync_version;

/* Why a layout was refused: the first tensor that does not fit. No pointer is NULL. */
typedef struct {
  const char* tensor;   /* "": the refusal is not about a tensor */
  const char* expected; /* what the engine has described, such as "BF16 [64, 32]". "": it has not
                         * described this tensor, or neither dtype nor shape is the problem */
  const char* found;    /* what the trainer publishes; "": it does not publish it, or as above */
} wsync_problem;

/* A range of one dimension of a tensor that a rank takes or has, in elements. */
typedef struct {
  uint32_t dim;
  uint64_t begin;
  uint64_t length;
} wsync_range;

#endif
