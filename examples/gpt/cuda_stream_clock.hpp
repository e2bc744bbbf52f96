#pragma once

#include "gpt/stream_clock.hpp"

namespace gpt {

/// Reads the times of streams of the current CUDA device with timed events.
///
/// Errors: unsupported, with CUDA's reason.
[[nodiscard]] penstock::Result<std::unique_ptr<StreamClock>> make_cuda_stream_clock();

}  // namespace gpt
