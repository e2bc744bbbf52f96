#pragma once

#include "gpt/device_memory.hpp"
#include "gpt/ops.hpp"

#include <memory>

namespace gpt {

/// Creates the Ops of host memory: single-threaded OpenBLAS for products and vectorised loops for the rest. Each
/// operation is a closure on stream.host_queue().
///
/// `scratch` holds the fp32 copy of one parameter: ModelDescription::scratch_count() elements. Its owner is shared
/// with the closures. Limits OpenBLAS to one thread for the whole process: the ranks run in parallel, and the result
/// must not depend on the number of free cores. Errors: unsupported, where OpenBLAS cannot be loaded.
[[nodiscard]] penstock::Result<std::unique_ptr<Ops>> make_host_ops(DeviceBuffer scratch);

}  // namespace gpt
