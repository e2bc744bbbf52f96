#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

// Each adds its classes to the module.
void bind_calls(nanobind::module_& module);
void bind_checksum(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_files(nanobind::module_& module);
void bind_host_memory(nanobind::module_& module);
void bind_optimizer(nanobind::module_& module);
void bind_runtime(nanobind::module_& module);
void bind_tensor(nanobind::module_& module);
void bind_tile_state(nanobind::module_& module);
void bind_tile_steps(nanobind::module_& module);

}  // namespace penstock::python
