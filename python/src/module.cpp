// penstock._core: the C interface in Python.
#include "bind.hpp"

#include <penstock/penstock.h>

NB_MODULE(_core, module) {
  module.attr("__version__") = penstock_version();
  penstock::python::bind_files(module);
  penstock::python::bind_optimizer(module);
  penstock::python::bind_runtime(module);
}
