#pragma once

#include "gpt/device_memory.hpp"
#include "gpt/ops.hpp"

#include <memory>

namespace gpt {

/// Makes the Ops of host memory: OpenBLAS on one thread a call, the rest vectorised loops. Each operation is
/// a closure on stream.host_queue().
///
/// `scratch` holds the fp32 copy of one parameter: scratch_size() bytes. Its owner is shared with the
/// closures. Limits OpenBLAS to one thread for the whole process: ranks are the parallelism here, and the
/// result must not depend on how many cores happen to be free.
[[nodiscard]] std::unique_ptr<Ops> make_host_ops(DeviceBuffer scratch);

/// The matrix product behind it: "OpenBLAS SkylakeX", or "naive".
[[nodiscard]] const char* host_matmul_name();

}  // namespace gpt
