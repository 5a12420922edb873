"""The windowing core, without driver or Spark, against hand-written loops and other libraries, per shape and kind of input."""
