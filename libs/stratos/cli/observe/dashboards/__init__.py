"""The pages, each as a table of panels: ``fleet``, ``requests``, ``workers``, ``money``; ``pages`` lists them."""
